package dbtest

import (
	"fmt"
	"net"
	"net/url"
	"strings"
)

// setting is one keyword of a DSN.
type setting struct{ name, value string }

// withSettings returns dsn, a URL or keywords and values, with settings that
// replace or extend what it says.
func withSettings(dsn string, settings ...setting) (string, error) {
	if strings.HasPrefix(dsn, "postgres://") || strings.HasPrefix(dsn, "postgresql://") {
		u, err := url.Parse(dsn)
		if err != nil {
			return "", err
		}
		query := u.Query()
		for _, s := range settings {
			// A query parameter overrides what the rest of the URL says.
			query.Set(s.name, s.value)
			if s.name == "dbname" {
				query.Del("database")
			}
		}
		// A plus stands for a space in a form, but for itself in such a URL.
		u.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20")
		return u.String(), nil
	}
	// Of two equal keywords the later one counts.
	var b strings.Builder
	b.WriteString(dsn)
	for _, s := range settings {
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(s.name + "=" + quoteValue(s.value))
	}
	return b.String(), nil
}

// quoteValue quotes a value for a keyword/value DSN where that is needed.
func quoteValue(s string) string {
	if s != "" && !strings.ContainsAny(s, " \t\r\n\v\f'\\") {
		return s
	}
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'"
}

func hostAndPort(addr string) ([]setting, error) {
	if addr == "" {
		return nil, nil
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	return []setting{{"host", host}, {"port", port}}, nil
}

func splitSetting(param string) (setting, error) {
	name, value, ok := strings.Cut(param, "=")
	if !ok || name == "" {
		return setting{}, fmt.Errorf("parameter %q is not of the form name=value", param)
	}
	return setting{name, value}, nil
}
