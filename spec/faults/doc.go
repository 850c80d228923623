// Package faults specifies what becomes of leases and claims under faults of
// real databases. The faults are real, too: connections hang or break, servers
// stop, clocks step, processes freeze. The tests use only what package lease
// exports. Most of them wait for a TTL to pass, so they run in parallel.
//
// Electors compete for the lease "job". A ledger notes when each work trusts
// its term. At the end of every test the ledger checks that no two works
// trusted their terms at once, and that epochs grew.
//
//   - lease_locks_test.go: somebody else locks the row, the table or the file,
//     or conflicts with the renewals.
//   - lease_connections_test.go: the pool is used up, connections hang, die or
//     break.
//   - lease_server_test.go: the server restarts, dies, stands still, turns
//     read-only, or lacks the table.
//   - lease_fence_test.go: a leader vanishes, freezes or lingers inside a
//     fenced transaction.
//   - lease_late_test.go: a statement lands after its sender has given up.
//   - lease_clock_test.go: the database's clock steps.
//   - lease_rivals_test.go: electors share a holder, take turns, or meet every
//     fault at random.
//   - lease_cost_test.go: polls and renewals leave nothing behind in the
//     database, nor a life of an elector in the process.
//
// Workers claim the item "item". The row says what became of it.
//
//   - claim_process_test.go: a worker's process is terminated or frozen.
//   - claim_connections_test.go: connections hang, die or lose replies, during
//     renewals, saves and transactions.
//   - claim_locks_test.go: a claim meets the fence of the claim before it.
//   - claim_server_test.go: the server restarts, or is gone for long.
//
// The helpers are in helpers_test.go (databases, proxies, logs), ledger_test.go
// (electors), worker_test.go (claims) and process_test.go (processes of their
// own).
package faults
