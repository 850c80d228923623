-- Every statement that the package sends, as it is sent. The first parameter is the
-- caller's time, or NULL for the database's clock (but of seed, find and save).

-- a lease: poll
SELECT c.now, l.name, l.holder, l.epoch, l.expires_at, l.acquired_at, l.renewed_at
FROM (SELECT COALESCE(CAST($1 AS BIGINT), (extract(epoch from clock_timestamp())*1000000)::bigint) AS now) AS c LEFT JOIN "leases" AS l ON l.name = $2;

-- a lease: list
SELECT c.now, l.name, l.holder, l.epoch, l.expires_at, l.acquired_at, l.renewed_at
FROM (SELECT COALESCE(CAST($1 AS BIGINT), (extract(epoch from clock_timestamp())*1000000)::bigint) AS now) AS c INNER JOIN "leases" AS l ON l.epoch > 0 OR l.holder <> '' ORDER BY l.name;

-- a lease: seed the row of a lease that has none
INSERT INTO "leases" (name, holder, epoch, expires_at, acquired_at, renewed_at) VALUES ($1, '', $2, 0, 0, 0)
ON CONFLICT (name) DO NOTHING;

-- a lease: take it, by hand (the last parameter is NULL) or as an elector
UPDATE "leases" AS l SET holder = $4, epoch = l.epoch + 1, acquired_at = lease_c.now, renewed_at = lease_c.now, expires_at = lease_c.now + $5
FROM (SELECT COALESCE(CAST($1 AS BIGINT), (extract(epoch from clock_timestamp())*1000000)::bigint) AS now, set_config('synchronous_commit', CASE current_setting('synchronous_commit')
	WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true) AS durable FROM (
	SELECT name FROM "leases" WHERE name = $2 AND epoch = $3
		AND (holder = '' OR renewed_at = CAST($6 AS BIGINT) OR CAST($6 AS BIGINT) IS NULL AND expires_at <= COALESCE(CAST($1 AS BIGINT), (extract(epoch from clock_timestamp())*1000000)::bigint)) FOR UPDATE
) AS g) AS lease_c
WHERE l.name = $2 AND l.epoch = $3 AND (l.holder = '' OR l.renewed_at = CAST($6 AS BIGINT) OR CAST($6 AS BIGINT) IS NULL AND l.expires_at <= lease_c.now);

-- a lease: renew it, as an elector
UPDATE "leases" AS l SET expires_at = GREATEST(l.renewed_at + 1, lease_c.now) + $5, renewed_at = GREATEST(l.renewed_at + 1, lease_c.now)
FROM (SELECT COALESCE(CAST($1 AS BIGINT), (extract(epoch from clock_timestamp())*1000000)::bigint) AS now, set_config('synchronous_commit', CASE current_setting('synchronous_commit')
	WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true) AS durable) AS lease_c
WHERE l.name = $2 AND l.holder = $3 AND l.epoch = $4 AND l.expires_at > lease_c.now + $6;

-- a lease: renew it by hand, as it was seen
UPDATE "leases" AS l SET
	expires_at = CASE WHEN l.renewed_at > lease_c.now + GREATEST($5, l.expires_at - l.renewed_at) THEN lease_c.now + $5 ELSE GREATEST(l.expires_at, GREATEST(l.renewed_at, lease_c.now) + $5) END,
	renewed_at = CASE WHEN l.renewed_at > lease_c.now + GREATEST($5, l.expires_at - l.renewed_at) THEN lease_c.now ELSE GREATEST(l.renewed_at + 1, lease_c.now) END
FROM (SELECT COALESCE(CAST($1 AS BIGINT), (extract(epoch from clock_timestamp())*1000000)::bigint) AS now, set_config('synchronous_commit', CASE current_setting('synchronous_commit')
	WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true) AS durable) AS lease_c
WHERE l.name = $2 AND l.holder = $3 AND l.epoch = $4 AND l.expires_at > lease_c.now AND l.renewed_at = $6;

-- a lease: release it by hand
UPDATE "leases" AS l SET holder = '', expires_at = lease_c.now
FROM (SELECT COALESCE(CAST($1 AS BIGINT), (extract(epoch from clock_timestamp())*1000000)::bigint) AS now, set_config('synchronous_commit', CASE current_setting('synchronous_commit')
	WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true) AS durable) AS lease_c
WHERE l.name = $2 AND l.holder = $3 AND l.expires_at > lease_c.now;

-- a lease: release a term
UPDATE "leases" AS l SET holder = '', expires_at = lease_c.now
FROM (SELECT COALESCE(CAST($1 AS BIGINT), (extract(epoch from clock_timestamp())*1000000)::bigint) AS now, set_config('synchronous_commit', CASE current_setting('synchronous_commit')
	WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true) AS durable) AS lease_c
WHERE l.name = $2 AND l.holder = $3 AND l.epoch = $4;

-- a lease: fence a term
SELECT set_config('idle_in_transaction_session_timeout', LEAST(
	GREATEST((expires_at - renewed_at) / 1000, 1), 2147483647,
	(extract(epoch from NULLIF(current_setting('idle_in_transaction_session_timeout'), '0')::interval) * 1000)::bigint)::text, true) ||
CASE WHEN version() LIKE '%linux%' AND current_setting('client_connection_check_interval', true) IS NOT NULL THEN
	set_config('client_connection_check_interval', LEAST(
		GREATEST((expires_at - renewed_at) / 3000, 1), 2147483647,
		(extract(epoch from NULLIF(current_setting('client_connection_check_interval', true), '0')::interval) * 1000)::bigint)::text, true) ELSE '' END ||
CASE WHEN version() LIKE '%linux%' AND current_setting('tcp_user_timeout', true) IS NOT NULL THEN
	set_config('tcp_user_timeout', LEAST(
		GREATEST((expires_at - renewed_at) / 1000, 1), 2147483647,
		NULLIF(current_setting('tcp_user_timeout', true), '0')::bigint)::text, true) ELSE '' END FROM "leases" WHERE name = $2 AND holder = $3 AND epoch = $4 AND expires_at > COALESCE(CAST($1 AS BIGINT), (extract(epoch from clock_timestamp())*1000000)::bigint) FOR KEY SHARE;

-- a row of a model: find
SELECT "jobs"."id" AS "id", "jobs"."tenant" AS "tenant", "jobs"."deleted_at" AS "deleted_at", "jobs"."claim_owner" AS "claim_owner", "jobs"."claim_step_id" AS "claim_step_id", "jobs"."claim_epoch" AS "claim_epoch", "jobs"."claim_revision" AS "claim_revision", "jobs"."claim_attempts" AS "claim_attempts", "jobs"."claim_acquired_at" AS "claim_acquired_at", "jobs"."claim_renewed_at" AS "claim_renewed_at", "jobs"."claim_expires_at" AS "claim_expires_at", "jobs"."claim_done" AS "claim_done" FROM "jobs" WHERE "jobs"."id" = $1 AND ("jobs"."deleted_at" IS NULL);

-- a row of a model: look before a claim
SELECT COALESCE(CAST($1 AS BIGINT), (extract(epoch from clock_timestamp())*1000000)::bigint), claim_owner, claim_epoch, COALESCE(claim_expires_at, 0), claim_done FROM "jobs" WHERE "jobs"."id" = $2 AND ("jobs"."deleted_at" IS NULL);

-- a row of a model: claim it, as it was seen
UPDATE "jobs" SET claim_owner = $4, claim_step_id = $5, claim_epoch = claim_epoch + 1, claim_revision = claim_revision + 1,
	claim_attempts = claim_attempts + 1, claim_acquired_at = lease_c.now, claim_renewed_at = lease_c.now, claim_expires_at = lease_c.now + $6
FROM (SELECT COALESCE(CAST($1 AS BIGINT), (extract(epoch from clock_timestamp())*1000000)::bigint) AS now, set_config('synchronous_commit', CASE current_setting('synchronous_commit')
	WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true) AS durable FROM (
	SELECT 1 FROM "jobs" WHERE "jobs"."id" = $2 AND claim_epoch = $3 AND claim_done IS NOT TRUE
		AND (claim_owner = '' OR claim_owner = $4 OR COALESCE(claim_expires_at, 0) <= COALESCE(CAST($1 AS BIGINT), (extract(epoch from clock_timestamp())*1000000)::bigint)) AND ("jobs"."deleted_at" IS NULL) FOR UPDATE
) AS lease_g) AS lease_c
WHERE "jobs"."id" = $2 AND claim_epoch = $3 AND claim_done IS NOT TRUE AND (claim_owner = '' OR claim_owner = $4 OR COALESCE(claim_expires_at, 0) <= lease_c.now) AND ("jobs"."deleted_at" IS NULL) RETURNING "jobs"."id" AS "id", "jobs"."tenant" AS "tenant", "jobs"."deleted_at" AS "deleted_at", "jobs"."claim_owner" AS "claim_owner", "jobs"."claim_step_id" AS "claim_step_id", "jobs"."claim_epoch" AS "claim_epoch", "jobs"."claim_revision" AS "claim_revision", "jobs"."claim_attempts" AS "claim_attempts", "jobs"."claim_acquired_at" AS "claim_acquired_at", "jobs"."claim_renewed_at" AS "claim_renewed_at", "jobs"."claim_expires_at" AS "claim_expires_at", "jobs"."claim_done" AS "claim_done";

-- a row of a model: look for the next
SELECT "jobs"."id", COALESCE(CAST($1 AS BIGINT), (extract(epoch from clock_timestamp())*1000000)::bigint), "jobs".claim_owner, "jobs".claim_epoch, COALESCE("jobs".claim_expires_at, 0), "jobs".claim_done FROM "jobs" WHERE ((NOT "jobs".claim_done AND ("jobs".claim_owner = '' OR COALESCE("jobs".claim_expires_at, 0) <= COALESCE(CAST($1 AS BIGINT), (extract(epoch from clock_timestamp())*1000000)::bigint)))) AND "jobs"."deleted_at" IS NULL ORDER BY COALESCE("jobs".claim_acquired_at, 0) LIMIT 1;

-- a row of a model: claim the next
WITH lease_c AS (SELECT lease_key, lease_owner, COALESCE(CAST($1 AS BIGINT), (extract(epoch from clock_timestamp())*1000000)::bigint) AS now, set_config('synchronous_commit', CASE current_setting('synchronous_commit')
	WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true) AS durable FROM (SELECT "jobs"."id" AS lease_key, "jobs".claim_owner AS lease_owner FROM "jobs" WHERE ((NOT "jobs".claim_done AND ("jobs".claim_owner = '' OR COALESCE("jobs".claim_expires_at, 0) <= COALESCE(CAST($1 AS BIGINT), (extract(epoch from clock_timestamp())*1000000)::bigint)))) AND "jobs"."deleted_at" IS NULL ORDER BY COALESCE("jobs".claim_acquired_at, 0) LIMIT 1 FOR UPDATE SKIP LOCKED) AS lease_g)
UPDATE "jobs" SET claim_owner = $2, claim_step_id = $3, claim_epoch = claim_epoch + 1, claim_revision = claim_revision + 1,
	claim_attempts = claim_attempts + 1, claim_acquired_at = lease_c.now, claim_renewed_at = lease_c.now, claim_expires_at = lease_c.now + $4
FROM lease_c WHERE "jobs"."id" = lease_c.lease_key RETURNING "jobs"."id" AS "id", "jobs"."tenant" AS "tenant", "jobs"."deleted_at" AS "deleted_at", "jobs"."claim_owner" AS "claim_owner", "jobs"."claim_step_id" AS "claim_step_id", "jobs"."claim_epoch" AS "claim_epoch", "jobs"."claim_revision" AS "claim_revision", "jobs"."claim_attempts" AS "claim_attempts", "jobs"."claim_acquired_at" AS "claim_acquired_at", "jobs"."claim_renewed_at" AS "claim_renewed_at", "jobs"."claim_expires_at" AS "claim_expires_at", "jobs"."claim_done" AS "claim_done", lease_c.lease_owner;

-- a row of a model: renew a claim
UPDATE "jobs" SET
	claim_expires_at = CASE WHEN claim_renewed_at > lease_c.now AND claim_renewed_at <= lease_c.now + $5 THEN claim_expires_at ELSE lease_c.now + $5 END,
	claim_renewed_at = CASE WHEN claim_renewed_at > lease_c.now AND claim_renewed_at <= lease_c.now + $5 THEN claim_renewed_at ELSE lease_c.now END
FROM (SELECT COALESCE(CAST($1 AS BIGINT), (extract(epoch from clock_timestamp())*1000000)::bigint) AS now, set_config('synchronous_commit', CASE current_setting('synchronous_commit')
	WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true) AS durable) AS lease_c
WHERE "jobs"."id" = $2 AND claim_owner = $3 AND claim_epoch = $4 AND ("jobs"."deleted_at" IS NULL) RETURNING claim_renewed_at, claim_expires_at;

-- a row of a model: release a claim
UPDATE "jobs" SET claim_owner = '', claim_step_id = '', claim_attempts = (claim_attempts - 1) * $5, claim_expires_at = lease_c.now
FROM (SELECT COALESCE(CAST($1 AS BIGINT), (extract(epoch from clock_timestamp())*1000000)::bigint) AS now, set_config('synchronous_commit', CASE current_setting('synchronous_commit')
	WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true) AS durable) AS lease_c
WHERE "jobs"."id" = $2 AND claim_owner = $3 AND claim_epoch = $4 AND ("jobs"."deleted_at" IS NULL) RETURNING claim_renewed_at, claim_expires_at;

-- a row of a model: fence a claim
SELECT set_config('idle_in_transaction_session_timeout', LEAST(
	GREATEST((claim_expires_at - claim_renewed_at) / 1000, 1), 2147483647,
	(extract(epoch from NULLIF(current_setting('idle_in_transaction_session_timeout'), '0')::interval) * 1000)::bigint)::text, true) ||
CASE WHEN version() LIKE '%linux%' AND current_setting('client_connection_check_interval', true) IS NOT NULL THEN
	set_config('client_connection_check_interval', LEAST(
		GREATEST((claim_expires_at - claim_renewed_at) / 3000, 1), 2147483647,
		(extract(epoch from NULLIF(current_setting('client_connection_check_interval', true), '0')::interval) * 1000)::bigint)::text, true) ELSE '' END ||
CASE WHEN version() LIKE '%linux%' AND current_setting('tcp_user_timeout', true) IS NOT NULL THEN
	set_config('tcp_user_timeout', LEAST(
		GREATEST((claim_expires_at - claim_renewed_at) / 1000, 1), 2147483647,
		NULLIF(current_setting('tcp_user_timeout', true), '0')::bigint)::text, true) ELSE '' END FROM "jobs" WHERE "jobs"."id" = $2 AND claim_owner = $3 AND claim_epoch = $4 AND claim_expires_at > COALESCE(CAST($1 AS BIGINT), (extract(epoch from clock_timestamp())*1000000)::bigint) FOR KEY SHARE;

-- an item: claim the next
WITH lease_c AS (SELECT lease_key, lease_owner, COALESCE(CAST($1 AS BIGINT), (extract(epoch from clock_timestamp())*1000000)::bigint) AS now, set_config('synchronous_commit', CASE current_setting('synchronous_commit')
	WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true) AS durable FROM (SELECT "lease_items"."key" AS lease_key, "lease_items".claim_owner AS lease_owner FROM "lease_items" WHERE (NOT "lease_items".claim_done AND ("lease_items".claim_owner = '' OR COALESCE("lease_items".claim_expires_at, 0) <= COALESCE(CAST($1 AS BIGINT), (extract(epoch from clock_timestamp())*1000000)::bigint))) ORDER BY COALESCE("lease_items".claim_acquired_at, 0) LIMIT 1 FOR UPDATE SKIP LOCKED) AS lease_g)
UPDATE "lease_items" SET claim_owner = $2, claim_step_id = $3, claim_epoch = claim_epoch + 1, claim_revision = claim_revision + 1,
	claim_attempts = claim_attempts + 1, claim_acquired_at = lease_c.now, claim_renewed_at = lease_c.now, claim_expires_at = lease_c.now + $4
FROM lease_c WHERE "lease_items"."key" = lease_c.lease_key RETURNING "lease_items"."key" AS "key", "lease_items"."payload" AS "payload", "lease_items"."claim_owner" AS "claim_owner", "lease_items"."claim_step_id" AS "claim_step_id", "lease_items"."claim_epoch" AS "claim_epoch", "lease_items"."claim_revision" AS "claim_revision", "lease_items"."claim_attempts" AS "claim_attempts", "lease_items"."claim_acquired_at" AS "claim_acquired_at", "lease_items"."claim_renewed_at" AS "claim_renewed_at", "lease_items"."claim_expires_at" AS "claim_expires_at", "lease_items"."claim_done" AS "claim_done", "lease_items"."created_at" AS "created_at", "lease_items"."updated_at" AS "updated_at", lease_c.lease_owner;

-- an item: save
UPDATE "lease_items" SET payload = COALESCE($1, payload), updated_at = $2, claim_revision = $3, claim_done = $4
WHERE "lease_items"."key" = $5 AND claim_owner = $6 AND claim_epoch = $7 AND claim_revision BETWEEN $8 AND $9;

-- an item: save in a transaction
UPDATE "lease_items" SET payload = COALESCE($1, payload), updated_at = $2, claim_revision = $3, claim_done = $4
WHERE "lease_items"."key" = $5 AND claim_owner = $6 AND claim_epoch = $7 AND claim_revision BETWEEN $8 AND $9 AND (set_config('idle_in_transaction_session_timeout', LEAST(
	GREATEST((claim_expires_at - claim_renewed_at) / 1000, 1), 2147483647,
	(extract(epoch from NULLIF(current_setting('idle_in_transaction_session_timeout'), '0')::interval) * 1000)::bigint)::text, true) ||
CASE WHEN version() LIKE '%linux%' AND current_setting('client_connection_check_interval', true) IS NOT NULL THEN
	set_config('client_connection_check_interval', LEAST(
		GREATEST((claim_expires_at - claim_renewed_at) / 3000, 1), 2147483647,
		(extract(epoch from NULLIF(current_setting('client_connection_check_interval', true), '0')::interval) * 1000)::bigint)::text, true) ELSE '' END ||
CASE WHEN version() LIKE '%linux%' AND current_setting('tcp_user_timeout', true) IS NOT NULL THEN
	set_config('tcp_user_timeout', LEAST(
		GREATEST((claim_expires_at - claim_renewed_at) / 1000, 1), 2147483647,
		NULLIF(current_setting('tcp_user_timeout', true), '0')::bigint)::text, true) ELSE '' END) IS NOT NULL;
