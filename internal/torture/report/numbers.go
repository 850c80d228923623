package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"
)

// percentile returns the least value that is not exceeded by p of the values (0
// to 1). Without values, percentile returns 0.
func percentile(values []time.Duration, p float64) time.Duration {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	rank := int(math.Ceil(p * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// readable formats a duration with as many digits as people read.
func readable(d time.Duration) string {
	if d < 0 {
		return "-" + readable(-d)
	}
	switch {
	case d == 0:
		return "0 s"
	case d < 10*time.Millisecond:
		return trimmed(float64(d)/1e6, 1) + " ms"
	case d < 999500*time.Microsecond:
		return trimmed(float64(d)/1e6, 0) + " ms"
	case d < 59995*time.Millisecond:
		return trimmed(d.Seconds(), 2) + " s"
	}
	d = d.Round(time.Second)
	if rest := d % time.Minute; rest != 0 {
		return fmt.Sprintf("%d min %d s", d/time.Minute, rest/time.Second)
	}
	return fmt.Sprintf("%d min", d/time.Minute)
}

// trimmed formats x with at most the given number of decimals.
func trimmed(x float64, decimals int) string {
	scale := math.Pow10(decimals)
	x = math.Round(x*scale)/scale + 0 // no -0
	return strconv.FormatFloat(x, 'f', -1, 64)
}

// plural returns "1 term" or "2 terms".
func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + one + "s"
}
