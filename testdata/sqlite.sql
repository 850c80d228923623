CREATE TABLE `leases` (
	`name` text NOT NULL,
	`holder` text NOT NULL DEFAULT (''),
	`epoch` integer NOT NULL DEFAULT (0),
	`expires_at` bigint NOT NULL DEFAULT (0),
	`acquired_at` bigint NOT NULL DEFAULT (0),
	`renewed_at` bigint NOT NULL DEFAULT (0),
	PRIMARY KEY (`name`)
);
