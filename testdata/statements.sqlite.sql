-- Every statement that the package sends, as it is sent. The first parameter is the
-- caller's time, or NULL for the database's clock (but of seed, find and save).

-- a lease: poll
SELECT c.now, l.name, l.holder, l.epoch, l.expires_at, l.acquired_at, l.renewed_at
FROM (SELECT IFNULL(?1, CAST((julianday('now')-2440587.5)*86400000+0.5 AS INTEGER)*1000) AS now) AS c LEFT JOIN "leases" AS l ON l.name = ?2;

-- a lease: list
SELECT c.now, l.name, l.holder, l.epoch, l.expires_at, l.acquired_at, l.renewed_at
FROM (SELECT IFNULL(?1, CAST((julianday('now')-2440587.5)*86400000+0.5 AS INTEGER)*1000) AS now) AS c INNER JOIN "leases" AS l ON l.epoch > 0 OR l.holder <> '' ORDER BY l.name;

-- a lease: seed the row of a lease that has none
INSERT INTO "leases" (name, holder, epoch, expires_at, acquired_at, renewed_at) VALUES (?1, '', ?2, 0, 0, 0)
ON CONFLICT (name) DO NOTHING;

-- a lease: take it, by hand (the last parameter is NULL) or as an elector
UPDATE "leases" AS l SET holder = ?4, epoch = l.epoch + 1, acquired_at = IFNULL(?1, CAST((julianday('now')-2440587.5)*86400000+0.5 AS INTEGER)*1000), renewed_at = IFNULL(?1, CAST((julianday('now')-2440587.5)*86400000+0.5 AS INTEGER)*1000), expires_at = IFNULL(?1, CAST((julianday('now')-2440587.5)*86400000+0.5 AS INTEGER)*1000) + ?5
WHERE l.name = ?2 AND l.epoch = ?3 AND (l.holder = '' OR l.renewed_at = CAST(?6 AS BIGINT) OR CAST(?6 AS BIGINT) IS NULL AND l.expires_at <= IFNULL(?1, CAST((julianday('now')-2440587.5)*86400000+0.5 AS INTEGER)*1000));

-- a lease: renew it, as an elector
UPDATE "leases" AS l SET expires_at = max(l.renewed_at + 1, IFNULL(?1, CAST((julianday('now')-2440587.5)*86400000+0.5 AS INTEGER)*1000)) + ?5, renewed_at = max(l.renewed_at + 1, IFNULL(?1, CAST((julianday('now')-2440587.5)*86400000+0.5 AS INTEGER)*1000))
WHERE l.name = ?2 AND l.holder = ?3 AND l.epoch = ?4 AND l.expires_at > IFNULL(?1, CAST((julianday('now')-2440587.5)*86400000+0.5 AS INTEGER)*1000) + ?6;

-- a lease: renew it by hand, as it was seen
UPDATE "leases" AS l SET
	expires_at = CASE WHEN l.renewed_at > IFNULL(?1, CAST((julianday('now')-2440587.5)*86400000+0.5 AS INTEGER)*1000) + max(?5, l.expires_at - l.renewed_at) THEN IFNULL(?1, CAST((julianday('now')-2440587.5)*86400000+0.5 AS INTEGER)*1000) + ?5 ELSE max(l.expires_at, max(l.renewed_at, IFNULL(?1, CAST((julianday('now')-2440587.5)*86400000+0.5 AS INTEGER)*1000)) + ?5) END,
	renewed_at = CASE WHEN l.renewed_at > IFNULL(?1, CAST((julianday('now')-2440587.5)*86400000+0.5 AS INTEGER)*1000) + max(?5, l.expires_at - l.renewed_at) THEN IFNULL(?1, CAST((julianday('now')-2440587.5)*86400000+0.5 AS INTEGER)*1000) ELSE max(l.renewed_at + 1, IFNULL(?1, CAST((julianday('now')-2440587.5)*86400000+0.5 AS INTEGER)*1000)) END
WHERE l.name = ?2 AND l.holder = ?3 AND l.epoch = ?4 AND l.expires_at > IFNULL(?1, CAST((julianday('now')-2440587.5)*86400000+0.5 AS INTEGER)*1000) AND l.renewed_at = ?6;

-- a lease: release it by hand
UPDATE "leases" AS l SET holder = '', expires_at = IFNULL(?1, CAST((julianday('now')-2440587.5)*86400000+0.5 AS INTEGER)*1000)
WHERE l.name = ?2 AND l.holder = ?3 AND l.expires_at > IFNULL(?1, CAST((julianday('now')-2440587.5)*86400000+0.5 AS INTEGER)*1000);

-- a lease: release a term
UPDATE "leases" AS l SET holder = '', expires_at = IFNULL(?1, CAST((julianday('now')-2440587.5)*86400000+0.5 AS INTEGER)*1000)
WHERE l.name = ?2 AND l.holder = ?3 AND l.epoch = ?4;

-- a lease: fence a term
UPDATE "leases" SET epoch = epoch WHERE name = ?2 AND holder = ?3 AND epoch = ?4 AND expires_at > IFNULL(?1, CAST((julianday('now')-2440587.5)*86400000+0.5 AS INTEGER)*1000);

-- a row of a model: find
SELECT `jobs`.`id` AS `id`, `jobs`.`tenant` AS `tenant`, `jobs`.`deleted_at` AS `deleted_at`, `jobs`.`claim_owner` AS `claim_owner`, `jobs`.`claim_step_id` AS `claim_step_id`, `jobs`.`claim_epoch` AS `claim_epoch`, `jobs`.`claim_revision` AS `claim_revision`, `jobs`.`claim_attempts` AS `claim_attempts`, `jobs`.`claim_acquired_at` AS `claim_acquired_at`, `jobs`.`claim_renewed_at` AS `claim_renewed_at`, `jobs`.`claim_expires_at` AS `claim_expires_at`, `jobs`.`claim_done` AS `claim_done` FROM `jobs` WHERE `jobs`.`id` = ?1 AND (`jobs`.`deleted_at` IS NULL);

-- a row of a model: look before a claim
SELECT IFNULL(?1, CAST((julianday('now')-2440587.5)*86400000+0.5 AS INTEGER)*1000), claim_owner, claim_epoch, COALESCE(claim_expires_at, 0), claim_done FROM `jobs` WHERE `jobs`.`id` = ?2 AND (`jobs`.`deleted_at` IS NULL);

-- a row of a model: claim it, as it was seen
UPDATE `jobs` SET claim_owner = ?4, claim_step_id = ?5, claim_epoch = claim_epoch + 1, claim_revision = claim_revision + 1,
	claim_attempts = claim_attempts + 1, claim_acquired_at = IFNULL(?1, CAST((julianday('now')-2440587.5)*86400000+0.5 AS INTEGER)*1000), claim_renewed_at = IFNULL(?1, CAST((julianday('now')-2440587.5)*86400000+0.5 AS INTEGER)*1000), claim_expires_at = IFNULL(?1, CAST((julianday('now')-2440587.5)*86400000+0.5 AS INTEGER)*1000) + ?6
WHERE `jobs`.`id` = ?2 AND claim_epoch = ?3 AND claim_done IS NOT TRUE AND (claim_owner = '' OR claim_owner = ?4 OR COALESCE(claim_expires_at, 0) <= IFNULL(?1, CAST((julianday('now')-2440587.5)*86400000+0.5 AS INTEGER)*1000)) AND (`jobs`.`deleted_at` IS NULL) RETURNING `jobs`.`id` AS `id`, `jobs`.`tenant` AS `tenant`, `jobs`.`deleted_at` AS `deleted_at`, `jobs`.`claim_owner` AS `claim_owner`, `jobs`.`claim_step_id` AS `claim_step_id`, `jobs`.`claim_epoch` AS `claim_epoch`, `jobs`.`claim_revision` AS `claim_revision`, `jobs`.`claim_attempts` AS `claim_attempts`, `jobs`.`claim_acquired_at` AS `claim_acquired_at`, `jobs`.`claim_renewed_at` AS `claim_renewed_at`, `jobs`.`claim_expires_at` AS `claim_expires_at`, `jobs`.`claim_done` AS `claim_done`;

-- a row of a model: look for the next
SELECT `jobs`.`id`, IFNULL(?1, CAST((julianday('now')-2440587.5)*86400000+0.5 AS INTEGER)*1000), `jobs`.claim_owner, `jobs`.claim_epoch, COALESCE(`jobs`.claim_expires_at, 0), `jobs`.claim_done FROM `jobs` WHERE ((NOT `jobs`.claim_done AND (`jobs`.claim_owner = '' OR COALESCE(`jobs`.claim_expires_at, 0) <= IFNULL(?1, CAST((julianday('now')-2440587.5)*86400000+0.5 AS INTEGER)*1000)))) AND `jobs`.`deleted_at` IS NULL ORDER BY COALESCE(`jobs`.claim_acquired_at, 0) LIMIT 1;

-- a row of a model: renew a claim
UPDATE `jobs` SET
	claim_expires_at = CASE WHEN claim_renewed_at > IFNULL(?1, CAST((julianday('now')-2440587.5)*86400000+0.5 AS INTEGER)*1000) AND claim_renewed_at <= IFNULL(?1, CAST((julianday('now')-2440587.5)*86400000+0.5 AS INTEGER)*1000) + ?5 THEN claim_expires_at ELSE IFNULL(?1, CAST((julianday('now')-2440587.5)*86400000+0.5 AS INTEGER)*1000) + ?5 END,
	claim_renewed_at = CASE WHEN claim_renewed_at > IFNULL(?1, CAST((julianday('now')-2440587.5)*86400000+0.5 AS INTEGER)*1000) AND claim_renewed_at <= IFNULL(?1, CAST((julianday('now')-2440587.5)*86400000+0.5 AS INTEGER)*1000) + ?5 THEN claim_renewed_at ELSE IFNULL(?1, CAST((julianday('now')-2440587.5)*86400000+0.5 AS INTEGER)*1000) END
WHERE `jobs`.`id` = ?2 AND claim_owner = ?3 AND claim_epoch = ?4 AND (`jobs`.`deleted_at` IS NULL) RETURNING claim_renewed_at, claim_expires_at;

-- a row of a model: release a claim
UPDATE `jobs` SET claim_owner = '', claim_step_id = '', claim_attempts = (claim_attempts - 1) * ?5, claim_expires_at = IFNULL(?1, CAST((julianday('now')-2440587.5)*86400000+0.5 AS INTEGER)*1000)
WHERE `jobs`.`id` = ?2 AND claim_owner = ?3 AND claim_epoch = ?4 AND (`jobs`.`deleted_at` IS NULL) RETURNING claim_renewed_at, claim_expires_at;

-- a row of a model: fence a claim
UPDATE `jobs` SET claim_epoch = claim_epoch WHERE `jobs`.`id` = ?2 AND claim_owner = ?3 AND claim_epoch = ?4 AND claim_expires_at > IFNULL(?1, CAST((julianday('now')-2440587.5)*86400000+0.5 AS INTEGER)*1000);

-- an item: save
UPDATE `lease_items` SET payload = COALESCE(?1, payload), updated_at = ?2, claim_revision = ?3, claim_done = ?4
WHERE `lease_items`.`key` = ?5 AND claim_owner = ?6 AND claim_epoch = ?7 AND claim_revision BETWEEN ?8 AND ?9;

-- an item: save in a transaction
UPDATE `lease_items` SET payload = COALESCE(?1, payload), updated_at = ?2, claim_revision = ?3, claim_done = ?4
WHERE `lease_items`.`key` = ?5 AND claim_owner = ?6 AND claim_epoch = ?7 AND claim_revision BETWEEN ?8 AND ?9;
