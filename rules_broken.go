//go:build lease_broken

package lease

import (
	"os"
	"strings"
)

// The broken twins of the five rules. LEASE_BROKEN names the one that is broken.

func broken(rule string) bool { return os.Getenv("LEASE_BROKEN") == rule }

func trustFrom(sent, answered instant) instant {
	if broken("deadline-from-reply") {
		return answered
	}
	return sent
}

func watchFrom(sent, answered instant) instant {
	if broken("watch-from-sending") {
		return sent
	}
	return answered
}

func inherits(row sighting, holder string) bool {
	return broken("inherited-row") && row.live() && row.Holder == holder
}

func mayRelease() bool { return broken("early-release") }

func fencing(locked string) string {
	if broken("fence-without-lock") {
		return strings.TrimSuffix(locked, " FOR KEY SHARE")
	}
	return locked
}
