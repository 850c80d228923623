// Command unclaimable must not compile: its model does not embed lease.Claimable.
package main

import (
	"context"
	"time"

	"github.com/sqllease/lease"
)

type parcel struct {
	ID    uint
	Claim lease.Claimable `gorm:"embedded"` // a field, and not embedded
}

func main() {
	_, _ = lease.ClaimAs[parcel](context.Background(), nil, 1, "A", "", time.Minute, nil)
	_, _ = lease.ClaimNext[parcel](context.Background(), nil, "A", "", time.Minute, nil)
}
