CREATE TABLE "leases" (
	"name" varchar(100) NOT NULL,
	"holder" varchar(200) NOT NULL DEFAULT (''),
	"epoch" bigint NOT NULL DEFAULT (0),
	"expires_at" bigint NOT NULL DEFAULT (0),
	"acquired_at" bigint NOT NULL DEFAULT (0),
	"renewed_at" bigint NOT NULL DEFAULT (0),
	PRIMARY KEY ("name")
);
CREATE TABLE "lease_items" (
	"key" varchar(255) NOT NULL,
	"payload" jsonb NOT NULL,
	"claim_owner" varchar(200) NOT NULL DEFAULT '',
	"claim_step_id" varchar(200) NOT NULL DEFAULT '',
	"claim_epoch" bigint NOT NULL DEFAULT 0,
	"claim_revision" bigint NOT NULL DEFAULT 0,
	"claim_attempts" bigint NOT NULL DEFAULT 0,
	"claim_acquired_at" bigint,
	"claim_renewed_at" bigint,
	"claim_expires_at" bigint,
	"claim_done" boolean NOT NULL DEFAULT false,
	"created_at" bigint,
	"updated_at" bigint,
	PRIMARY KEY ("key")
);
CREATE INDEX "idx_lease_items_claim_queue" ON "lease_items" (COALESCE(claim_acquired_at,0)) WHERE NOT claim_done;
