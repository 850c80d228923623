CREATE TABLE "leases" (
	"name" varchar(100) NOT NULL,
	"holder" varchar(200) NOT NULL DEFAULT (''),
	"epoch" bigint NOT NULL DEFAULT (0),
	"expires_at" bigint NOT NULL DEFAULT (0),
	"acquired_at" bigint NOT NULL DEFAULT (0),
	"renewed_at" bigint NOT NULL DEFAULT (0),
	PRIMARY KEY ("name")
);
