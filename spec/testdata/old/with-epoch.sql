CREATE TABLE leases (
	name varchar(100) NOT NULL PRIMARY KEY,
	holder varchar(200) NOT NULL,
	expires_at bigint NOT NULL,
	epoch bigint NOT NULL
);
INSERT INTO leases (name, holder, expires_at, epoch) VALUES ('job', 'A', 4102444800000000, 41);
INSERT INTO leases (name, holder, expires_at, epoch) VALUES ('expired', 'A', 1, 6);
