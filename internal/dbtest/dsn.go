package dbtest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"
)

// setting is one keyword of a DSN.
type setting struct{ name, value string }

// keywords returns dsn as keywords and values. A URL says the same in another
// form, but its escapes confuse GORM's driver, which looks for a time zone in it.
func keywords(dsn string) (string, error) {
	if !strings.HasPrefix(dsn, "postgres://") && !strings.HasPrefix(dsn, "postgresql://") {
		return dsn, nil
	}
	u, err := url.Parse(dsn)
	if err != nil {
		var wrong *url.Error
		if errors.As(err, &wrong) {
			err = wrong.Err // without the URL, which may hold a password
		}
		return "", fmt.Errorf("not a URL: %w", err)
	}
	var settings []setting
	add := func(name, value string) {
		if value != "" {
			settings = append(settings, setting{name, value})
		}
	}
	var hosts, ports []string
	for _, address := range strings.Split(u.Host, ",") {
		one := url.URL{Host: address}
		hosts, ports = append(hosts, one.Hostname()), append(ports, cmp.Or(one.Port(), "5432"))
	}
	if u.Host != "" {
		add("host", strings.Join(hosts, ","))
		add("port", strings.Join(ports, ","))
	}
	add("user", u.User.Username())
	if password, ok := u.User.Password(); ok {
		add("password", password)
	}
	add("dbname", strings.TrimPrefix(u.Path, "/"))
	// A plus stands for a space in a form, but for itself in such a URL.
	query, err := url.ParseQuery(strings.ReplaceAll(u.RawQuery, "+", "%2B"))
	if err != nil {
		return "", err
	}
	for _, name := range slices.Sorted(maps.Keys(query)) { // an option overrides what the rest of the URL says
		keyword := name
		if name == "database" {
			keyword = "dbname"
		}
		add(keyword, query.Get(name))
	}
	return withSettings("", settings...), nil
}

// withSettings returns dsn, keywords and values, with settings that replace or
// extend what it says: of two equal keywords the later one counts.
func withSettings(dsn string, settings ...setting) string {
	var b strings.Builder
	b.WriteString(dsn)
	for _, s := range settings {
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(s.name + "=" + quoteValue(s.value))
	}
	return b.String()
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
