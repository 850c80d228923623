// Package spec specifies the lease package by tests that use only what the
// lease package exports. Almost every test runs on SQLite and on Postgres.
//
// This page is the table of contents. The left column has the promises of the
// lease package's documentation and README, in their order. The right column
// names the file that holds the package to the promise, without _test.go.
//
// Three other places hold a part of the specification. ../lease_test.go has the
// leases by hand. The tests of Elector, HolderOf.Heartbeat and HolderOf.Run use
// the clocks of the package, and stand beside it: ../elector_*, ../heartbeat_*,
// ../holder_run and ../watch. The package faults, below this one, holds leases
// and claims to the same promises under faults of real databases.
//
// The torture, ../internal/torture, checks the guarantees on whole processes.
//
// # What is guaranteed
//
// At most one term is in force:
//
//	a free lease is granted, a live one refused       ../lease
//	one contender of many wins                        ../lease
//	a renewal takes nothing back                      lease_renew
//	a live claim is held against all others           claim_exclusive
//	one claimant of many wins                         claim_contention
//	electors, whatever happens                        ../one_leader_*
//
// Work stops before anyone else can start:
//
//	two thirds of the TTL after the last sending      ../elector_deadline
//	the same, of a claim                              ../heartbeat_trouble
//	clocks that drift, jump and stand still           ../elector_clock, ../lease
//	a database call hangs                             faults/lease_connections
//
// A stale writer cannot commit:
//
//	Fence and Transaction prove the term              fence_term
//	the next term waits for a fenced transaction      fence_takeover
//	Transaction commits all or nothing                transaction_commit
//	a save of a claim that was lost                   claim_lost
//	a fence by a claim                                claim_fence
//
// The epoch never goes back:
//
//	of a lease                                        ../lease
//	of a claim                                        claim_exclusive
//
// A lease always comes free:
//
//	it expires, it is released                        ../lease
//	a standby takes it a TTL after the last renewal   ../elector_take
//	a process froze in a fenced transaction           fence_frozen,
//	                                                  faults/lease_fence,
//	                                                  faults/claim_process
//
// # What is not
//
//	an old worker's last write, fenced                fence_term, claim_lost
//	a row that was deleted by hand                    ../lease
//	a clock that was set back, or stands ahead        ../lease, lease_renew,
//	                                                  faults/lease_clock
//	the same, of claims                               claim_renew
//	somebody keeps the row or the file locked         ../lease, fence_takeover,
//	                                                  faults/lease_locks
//	work that winds down                              ../elector_leave
//	work that ignores its context                     ../elector_lose
//	the bounds of an idle or unread transaction       fence_frozen
//
// # Fencing
//
//	the term comes with the context                   fence_term
//	a fence needs a transaction and a term            fence_term
//	a roll-back to an earlier savepoint undoes it     fence_takeover
//	renewals go on beside a fence, on Postgres        fence_takeover
//	a transaction in a transaction, options, panics   transaction_commit
//	a loss surfaces as ErrLost                        transaction_commit
//	SQLite ended the whole transaction by itself      transaction_ended
//
// # Claims
//
//	create and load                                   claim_create
//	payloads                                          claim_payload
//	held, expired, done, claimed anew                 claim_exclusive
//	keys, owners, TTLs and contexts are checked       claim_arguments
//	the next item, in the order of the queue          claim_next
//	scopes choose among the items                     claim_scope
//	a renewal                                         claim_renew
//	a release, which may be repeated                  claim_release
//	a claim that was lost changes nothing             claim_lost
//	a save of all columns, or of those named          claim_save
//	a save replaces every save before it              claim_save_late
//	SaveIn commits with its transaction               claim_save_in
//	a fence by the claim, effects once                claim_fence
//	errors                                            claim_error
//
// # Models
//
//	claims and saves of a model's own columns         model_save
//	names of columns                                  model_column
//	primary keys                                      model_key
//	tables: names, schemas, naming strategies         model_table
//	migrations                                        model_migrate
//	models that will not do                           model_invalid
//	embedded structs and items                        model_embed
//	the times of updates                              model_time
//	hooks                                             model_hook
//	hooks and callbacks that leave columns out        model_omit
//	plugins and callbacks                             model_plugin
//	fields that narrow every query                    model_condition
//	soft delete                                       model_save, claim_lost
//	versions and optimistic locks                     model_version
//	code of the model's own that fails                model_failure
//
// # How a term goes
//
//	a standby polls, and takes over                   ../elector_follow,
//	                                                  ../elector_take
//	a leader renews                                   ../elector_lead
//	a term is lost                                    ../elector_lose
//	Run ends, or Resign is called                     ../elector_leave
//	a claim is kept, and ends with its work           ../heartbeat, ../holder_run
//
// # Whose clock
//
//	of leases                                         ../lease
//	of claims                                         claim_exclusive
//	every renewal changes the row                     lease_renew
//	a standby goes by its own clock                   ../watch
//	the ends of the calendar                          lease_arguments,
//	                                                  claim_arguments
//
// # The handle
//
//	conditions, sessions, protocols are no matter     handle_session
//	the primary decides, never a read replica         handle_primary
//	the logger hears nothing                          handle_log
//	one connection, a small pool                      handle_pool
//	Tables names other tables                         handle_tables
//	SQLite in memory                                  handle_memory
//	handles that cannot serve                         handle_invalid
//
// # The schema
//
//	EnsureSchema and DDL make the same tables         schema_create
//	again, and several at once                        schema_repeat
//	tables of earlier versions                        schema_upgrade
//	tables of somebody else                           schema_strangers
//	roles that may not create, files that only read   schema_rights
//
// # Leases by hand, further
//
//	names, holders and TTLs are checked               lease_arguments
//	errors, without a password                        lease_error
//	records read and written through GORM             lease_record
//	never committed asynchronously, on Postgres       lease_commit
//
// # What it costs
//
//	the statements of a lease, heap-only renewals     lease_cost
//	the statements of a claim, heap-only renewals     claim_cost
//	a claim among a hundred thousand rows             claim_scale
//
// # Helpers
//
// Files named by a plural hold what several files need, and no test:
// helpers_test.go the small ones, items_test.go an item and a clock,
// models_test.go the models, handles_test.go what a handle must bear,
// tables_test.go what the catalogue tells, spy_test.go the statements sent.
// The package internal/leasetest has what lease_test.go needs too.
package spec
