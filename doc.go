// Package lease provides leader election, leases and fenced work-item claims
// for services whose replicas share only a SQL database. Work that must run in
// exactly one replica runs in exactly one replica at a time, through rolling
// updates, crashes, partitions and pauses.
//
// A lease is a row with a name, a holder, an epoch and an expiry. An [Elector]
// runs a function in the replica that holds the lease:
//
//	elector := &lease.Elector{DB: db, Name: "reconciler", TTL: 15 * time.Second}
//	err := elector.Run(ctx, func(ctx context.Context) {
//		// Only one replica is here.
//		// ctx ends when the replica can no longer trust its term.
//	})
//
// A term is one unbroken time in which a holder holds the lease. Every term has
// an epoch of its own.
//
// [EnsureSchema] creates the tables. [TryAcquire] and [Release] take and
// release the same leases by hand.
//
// Any number of workers may claim work items, each item by one worker at a
// time: see Claims.
//
// # What is guaranteed
//
// In order of importance:
//
//  1. At most one term is in force. A lease is granted only when it is free,
//     released or expired, by a single guarded statement. The database decides
//     the outcome of the statement. See Whose clock for when a lease counts as
//     expired.
//  2. Work stops before anyone else can start. A leader's right to work ends
//     two thirds of the TTL after the leader sent its last good acquisition or
//     renewal, by the leader's own clocks. From that instant [Elector.IsLeader]
//     is false and the work's context is cancelled, even while a database call
//     hangs. The row stays held for another third of the TTL. This margin is
//     for clocks that drift and for work that winds down.
//  3. A stale writer cannot commit. [Transaction], [Fence] and [HolderOf.Save]
//     decide in the database, in the same transaction as the write.
//  4. The epoch never goes back: not on release, not on expiry, and not when
//     the same holder comes again.
//  5. A lease always comes free. A process that dies, hangs or is cut off holds
//     the lease for at most one TTL after its last statement landed. On
//     Postgres a process that froze inside a fenced transaction holds the lease
//     for at most two TTLs.
//
// # What is not
//
// Work that ignores its context may overlap with the next leader's work. So may
// work in a machine that was paused as a whole, because such a pause can stop
// both clocks of the machine. Fence the writes of such work.
//
// Rows deleted by hand, asynchronous replication and fsync = off can void the
// first and the fourth guarantee. They can void the third guarantee, too, where
// two processes share a holder.
//
// A step of the database's clock by a third of the TTL or more may cost a
// leader its term. No step, back or forth, however often, makes two leaders
// among electors that polled their lease before the step. A step can use up the
// margin of the second guarantee, except for a twelfth of the TTL. An [Elector]
// that starts after a step forward can take a lease that is still live, because
// its first poll has only the database's clock to go by. So can [TryAcquire],
// because it never watches the lease. After a step forward an elector can also
// take a lease that was acquired by hand, in the last quarter of its TTL.
//
// After a step back a lease appears to be held until the clock has caught up,
// because no renewal takes an expiry back. Electors take such a lease all the
// same, a TTL after its holder has vanished. TryAcquire cannot take such a
// lease before the clock has caught up or the lease is released.
//
// Nothing watches a claim in this way. A step forward lets claims run out
// early, and a step back lets them run out late. An item whose worker died
// while the clock was ahead stays claimed until the clock has caught up. Saves
// and fences of claims hold all the same.
//
// While anyone keeps the row locked, or SQLite's file, nobody can take the
// lease:
//
//   - On SQLite, a process frozen inside a transaction keeps the file locked
//     until the process wakes or dies.
//   - On Postgres, a statement that runs in a fenced transaction keeps the row
//     locked until the statement ends. If the client is gone, the server
//     notices this within a third of the TTL (version 14 or later, on Linux).
//   - On Postgres, a client that freezes or is cut off while it reads a large
//     result in a fenced transaction is dropped after a TTL over TCP (version
//     12 or later, on Linux). Over a Unix socket the client keeps the row
//     locked until it wakes or dies.
//
// Work that winds down keeps the lease until the work has returned. A service
// that must end in time ends itself:
//
//	stop := context.AfterFunc(ctx, func() {
//		time.AfterFunc(30*time.Second, func() { os.Exit(1) })
//	})
//	defer stop()
//
// # Fencing
//
// A pause can always come between the last look at a clock and a write. Only
// the database can then tell whether the term is in force, so let the database
// decide:
//
//	err := lease.Transaction(ctx, db, func(tx *gorm.DB) error {
//		return tx.Create(&result).Error // committed in this term, or not at all
//	})
//
// Inside the function, write through tx alone: tx.Create, gorm.G[T](tx). Writes
// through db are neither fenced nor rolled back.
//
// The work's context carries the term. Pass the context to [Transaction]. For
// [Fence], give tx the context: call tx.WithContext or Session, or call Begin
// on a handle that has the context. A handle kept from start-up does not carry
// the term.
//
// Take the fence first, and keep the transaction short. On SQLite a fenced
// transaction holds up renewals, as any write does. Postgres ends a fenced
// transaction that lies idle for a TTL. A rollback to a savepoint from before
// the fence undoes the fence.
//
// While work winds down, its term is still in force, though its context has
// ended. For a last write, pass context.WithoutCancel(ctx).
//
// SQLite ends a whole transaction by itself if a statement in the transaction
// is interrupted, says OR ROLLBACK, or meets a full disk. From then on a fenced
// transaction refuses every statement and its commit. Write through the handle
// that was fenced, or through a handle derived from it afterwards.
//
// A receiver outside the database can fence effects, too, if every effect
// carries [Term].Epoch and the receiver refuses an epoch lower than any it has
// seen.
//
// # Claims
//
// A worker claims an item, keeps the claim alive while it works on the item,
// and saves the item. The items are rows of a model of your own that embeds
// [Claimable] ([ClaimAs], [ClaimNext]), or rows of the package's table
// lease_items ([Item], [Create], [Load], [Claim]):
//
//	type Job struct {
//		ID     uint
//		Result string
//		lease.Claimable
//	}
//
//	holder, err := lease.ClaimNext[Job](ctx, db, me, "", time.Minute, nil)
//	err = holder.Run(ctx, func(ctx context.Context) error {
//		job := holder.Item()
//		// Only one worker is here.
//		// ctx ends when the worker can no longer trust its claim.
//		job.Result, job.Done = "made", true
//		return holder.Save(ctx, job) // refused if the claim was lost
//	})
//
// A claim is to an item what a term is to a lease. A claim has an epoch,
// expires unless it is renewed, and can be fenced. A claim differs from a term
// in two ways:
//
//   - After a claim ran out, and until somebody takes the item, the worker may
//     still renew the claim and save the item.
//   - An owner may claim its own item again, at once ([Claim], [ClaimAs]). The
//     new claim ends the earlier claim, so give every worker an owner of its
//     own.
//
// A worker that dies leaves its item claimed for at most one TTL. Then the item
// goes to the back of the queue, and Attempts counts its claims since the last
// clean release. [HolderOf.Run] says how a claim ends in each case.
//
// A save replaces every earlier save of the same claim, even an earlier save
// whose reply was lost and that lands only afterwards.
//
// A worker's other writes to the database take effect once if they commit
// together with the item's new state:
//
//	// In Run's work. The claim fences the transaction.
//	err := lease.Transaction(ctx, db, func(tx *gorm.DB) error {
//		if err := tx.Create(&effect).Error; err != nil {
//			return err
//		}
//		job.Done = true
//		return holder.SaveIn(tx, job)
//	})
//
// # How a term goes
//
// A standby polls every quarter to third of a TTL, and once more when the lease
// should come free. A poll is one SELECT that writes and locks nothing. A
// takeover is one guarded UPDATE right after a poll.
//
// A leader renews every third of a TTL, with one UPDATE. If an attempt fails,
// or is not answered within a twelfth of the TTL, the leader sends another
// attempt, on another connection. So a few dead connections, or a short
// restart, go unnoticed. At two thirds of the TTL a deadline cancels the work,
// and no statement can hold up the deadline.
//
// When Run's context ends, or on [Elector.Resign], Run cancels the work's
// context, renews the lease until the work has returned, and only then releases
// the lease.
//
// # Whose clock
//
// The database's clock decides. With a zero now, or a nil [Elector].Now, every
// expiry is computed and compared inside the statement, so the replicas' clocks
// need not agree. A caller that passes its own time gets exactly this time.
// Then everyone on the lease must pass their own time, from clocks that agree
// within a third of the TTL.
//
// A clock can be stepped, so a standby decides by its own monotonic clock, as
// far as it can. Every renewal changes the row. A standby takes the lease once
// the row has stood unchanged for the TTL, even if the database's clock, set
// back, says that the lease is held. Only the database's clock can tell how old
// the row was when a poll first showed it. The standby believes this age up to
// a quarter of the TTL. In its very first poll the standby believes the age
// wholly.
//
// So a standby that polls in time takes a lease within a twelfth of the TTL
// after the row has expired. A standby that could not poll for a while, and then
// finds a row that has changed, waits three quarters of the TTL.
//
// A leader's term is over when either its monotonic or its wall clock says so,
// because the monotonic clock stands still while a machine is suspended.
//
// # The handle
//
// The package uses only the primary's connection pool and the dialect of the
// *gorm.DB. It uses no conditions, hooks, logger, default transaction or cached
// statements of the handle. [Tables] names other tables.
//
// Rows of a model are read and saved through GORM, on a clean session. So the
// model's hooks, serializers and soft delete are kept.
//
// An election needs a free connection now and then. Give the pool more
// connections than the work itself can exhaust.
package lease
