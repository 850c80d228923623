CREATE TABLE `leases` (
	`name` text NOT NULL,
	`holder` text NOT NULL DEFAULT (''),
	`epoch` integer NOT NULL DEFAULT (0),
	`expires_at` bigint NOT NULL DEFAULT (0),
	`acquired_at` bigint NOT NULL DEFAULT (0),
	`renewed_at` bigint NOT NULL DEFAULT (0),
	PRIMARY KEY (`name`)
);
CREATE TABLE `lease_items` (
	`key` text NOT NULL,
	`payload` text NOT NULL,
	`claim_owner` text NOT NULL DEFAULT '',
	`claim_step_id` text NOT NULL DEFAULT '',
	`claim_epoch` integer NOT NULL DEFAULT 0,
	`claim_revision` integer NOT NULL DEFAULT 0,
	`claim_attempts` integer NOT NULL DEFAULT 0,
	`claim_acquired_at` bigint,
	`claim_renewed_at` bigint,
	`claim_expires_at` bigint,
	`claim_done` numeric NOT NULL DEFAULT false,
	`created_at` bigint,
	`updated_at` bigint,
	PRIMARY KEY (`key`)
);
CREATE INDEX `idx_lease_items_claim_queue` ON `lease_items` (COALESCE(claim_acquired_at,0)) WHERE NOT claim_done;
