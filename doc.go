// Package lease lets services whose replicas share nothing but a SQL database run, in exactly one of them at a time, the work that must
// run in exactly one: through rolling updates, crashes, partitions and pauses.
//
// A lease is a row with a name, a holder, an epoch and an expiry. An [Elector] runs a function in whichever replica holds it:
//
//	elector := &lease.Elector{DB: db, Name: "reconciler", TTL: 15 * time.Second}
//	err := elector.Run(ctx, func(ctx context.Context) {
//		// Only one replica is here. ctx ends when that can no longer be trusted.
//	})
//
// [EnsureSchema] makes the tables. [TryAcquire] and [Release] are the same leases by hand.
//
// Work items are claimed, one by one, by as many workers as there are: see Claims.
//
// # What is guaranteed
//
// In the order in which it matters:
//
//  1. At most one term is in force. A lease is granted only when it is free, released or expired, by one guarded statement whose outcome
//     the database decides.
//  2. Work stops before anyone else can start. A leader's right to work ends two thirds of the TTL after the sending of its last good
//     acquisition or renewal, by its own clocks. From that instant [Elector.IsLeader] is false and the work's context is cancelled, whether
//     or not a database call is hanging. The row stays held for another third: the margin for clocks that drift and work that winds down.
//  3. A stale writer cannot commit. [Transaction], [Fence] and [HolderOf.Save] decide in the database, in the same transaction as the write.
//  4. The epoch never goes back: not on release, not when the same holder comes again, not on expiry.
//  5. A lease always comes free. A process that dies, hangs or is cut off holds it for at most one TTL after its last statement
//     landed; on Postgres for two, if it froze inside a fenced transaction.
//
// # What is not
//
// Work that ignores its context may overlap with the next leader's. So may work in a machine that was paused as a whole, which can stop both
// of its clocks. Fence what it writes.
//
// Rows deleted by hand, asynchronous replication and fsync = off can void the first and the fourth guarantee; and the third, where two
// processes share a holder.
//
// A step of the database's clock by a third of the TTL or more may cost a leader
// its term. No step, back or forth, however often, makes two leaders among
// electors that have polled their lease before. It can use up the margin of the
// second guarantee, except for a twelfth of the TTL. An [Elector] that starts
// after a step forward can take a lease that is still live, because its first
// poll has only the database's clock to go by. So can [TryAcquire], which never
// watches the lease.
//
// After a step back a lease says that it is held until the clock has caught up:
// renewals take no expiry back. Electors take it all the same, a TTL after its
// holder has vanished. TryAcquire waits for the clock, or for a release.
//
// Claims have no such watch. A step forward lets them run out early. An item whose
// worker died while the clock was ahead stays claimed until the clock has caught
// up. Their saves and fences hold all the same.
//
// While anyone keeps the row locked, or SQLite's file, nobody can take the lease. A process frozen inside a transaction keeps SQLite's file locked
// until it wakes or dies. A statement that runs in a fenced transaction on Postgres keeps the row locked until it ends; if its client is
// gone, the server notices that within a third of the TTL (version 14 or later, on Linux). A client that freezes or is cut off while it reads a
// large result is dropped after a TTL over TCP (version 12 or later, on Linux). Over a Unix socket it keeps the row locked until it wakes or dies.
//
// Work that winds down keeps the lease for as long as that takes; a service that must end in time ends itself:
//
//	stop := context.AfterFunc(ctx, func() { time.AfterFunc(30*time.Second, func() { os.Exit(1) }) })
//	defer stop()
//
// # Fencing
//
// Between the last look at a clock and a write there is always time for a pause. Only the database can tell then, so let it:
//
//	err := lease.Transaction(ctx, db, func(tx *gorm.DB) error {
//		return tx.Create(&result).Error // committed in this term, or not at all
//	})
//
// Inside, write through tx alone: tx.Create, gorm.G[T](tx). What goes through db is neither fenced nor rolled back. The term comes with the
// work's context, through [Transaction], and through tx.WithContext, Begin and Session for [Fence]; a handle kept from start-up does not
// carry it. Take the fence first, and keep the transaction short: on SQLite it holds up renewals, as any write does, and Postgres ends one
// that lies idle for a TTL. A roll-back to a savepoint from before the fence undoes it. While work winds down its term is still in force,
// though its context has ended: a last write takes context.WithoutCancel(ctx).
//
// SQLite ends a whole transaction by itself if a statement in it is interrupted,
// says OR ROLLBACK, or meets a full disk. A fenced transaction refuses everything
// from then on, and its commit. Write through the handle that was fenced, or one
// derived from it.
//
// Effects outside the database can be fenced by whoever receives them, if they carry [Term].Epoch along and the receiver refuses a lower
// one than it has seen.
//
// # Claims
//
// A worker claims one item, keeps the claim alive while it works on the item, and saves it. The items are rows of a model of your own that embeds
// [Claimable] ([ClaimAs], [ClaimNext]), or of the package's table lease_items ([Item], [Create], [Load], [Claim]):
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
//		// Only one worker is here. ctx ends when that can no longer be trusted.
//		job.Result, job.Done = "made", true
//		return holder.Save(ctx, job) // refused if the claim was lost
//	})
//
// A claim is what a term is to a lease: it has an epoch, it expires unless it is renewed, and it can be fenced. It differs in this. A claim
// that ran out, and that nobody has taken, may still be renewed and saved. The same owner may claim an item again, at once, which ends its
// earlier claim: so every worker needs an owner of its own. A worker that dies leaves its item claimed for at most one TTL; then the item goes to the
// back of the queue, with its Attempts counted. [HolderOf.Run] tells how a claim ends in each case.
//
// A save replaces every save before it of the same claim, also one whose reply was lost and that lands only later.
//
// What a worker writes elsewhere in the database is done once if it commits together with the item's new state:
//
//	err := lease.Transaction(ctx, db, func(tx *gorm.DB) error { // in Run's work, fenced by the claim
//		if err := tx.Create(&effect).Error; err != nil {
//			return err
//		}
//		job.Done = true
//		return holder.SaveIn(tx, job)
//	})
//
// # How a term goes
//
// A standby polls every quarter to third of a TTL, with one SELECT that writes and locks nothing, and once more when the lease should come
// free. A takeover is one guarded UPDATE right after a poll. A leader renews every third of a TTL, with one UPDATE; an attempt that fails,
// or is not answered within a twelfth, is joined by another on another connection, so that a few dead connections or a short
// restart go unnoticed. A deadline that no statement can hold up cancels the work at two thirds.
//
// When Run's context ends, or on [Elector.Resign], the work's context is cancelled, the lease is renewed until the work has returned, and
// only then released.
//
// # Whose clock
//
// The database's. With a zero now, or a nil [Elector].Now, every expiry is computed and compared inside the statement, so the replicas'
// clocks need not agree. A caller that passes its own time gets exactly that; then everyone on that lease must, from clocks that agree
// within a third of the TTL.
//
// A clock can be stepped, so a standby decides by its own monotonic clock, as far
// as it can. Every renewal changes the row. A standby takes the lease once the row
// has stood unchanged for the TTL, even if the database's clock, set back, says
// that the lease is held. How old the row was when a poll first showed it, only
// the database's clock can tell. The standby believes that age up to a quarter of
// the TTL, and wholly in its very first poll.
//
// A leader's term is over when either its monotonic or its wall clock says so,
// since the first stands still while a machine is suspended.
//
// # The handle
//
// Of the *gorm.DB that it is given the package uses the primary's connection pool and the dialect, and nothing else: no conditions, hooks, logger,
// default transaction or cached statements. [Tables] names other tables. Rows of a model are read and saved through GORM, on a clean
// session, so that the model's hooks, serializers and soft delete are kept.
//
// An election needs one free connection now and then; give the pool more than the work itself can exhaust.
package lease
