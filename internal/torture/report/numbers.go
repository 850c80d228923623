package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"
)

// percentile is the least of the values that p of them (0 to 1) do not exceed; 0 of none.
func percentile(values []time.Duration, p float64) time.Duration {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	rank := int(math.Ceil(p * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// readable prints a duration with as many digits as one reads.
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

// trimmed is x with at most so many decimals.
func trimmed(x float64, decimals int) string {
	scale := math.Pow10(decimals)
	x = math.Round(x*scale)/scale + 0 // no -0
	return strconv.FormatFloat(x, 'f', -1, 64)
}

// plural is "1 term", "2 terms".
func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + one + "s"
}
