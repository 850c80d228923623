CREATE TABLE leases (
	name varchar(100) NOT NULL,
	holder varchar(200) NOT NULL DEFAULT '',
	expires_at bigint NOT NULL DEFAULT 0,
	acquired_at bigint NOT NULL DEFAULT 0,
	note varchar(20) DEFAULT 'kept',
	PRIMARY KEY (name)
);
INSERT INTO leases (name, holder, expires_at, acquired_at) VALUES ('job', 'A', 4102444800000000, 1709294400000000);
INSERT INTO leases (name, holder, expires_at, acquired_at) VALUES ('expired', 'A', 1, 1);
