package dbtest

import (
	"cmp"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// findBinaries returns the directory of the newest Postgres server installed on
// this machine. It looks once.
var findBinaries = sync.OnceValues(lookForBinaries)

func lookForBinaries() (dir string, ok bool) {
	if !canRunServers {
		return "", false
	}
	var dirs []string
	for _, pattern := range []string{"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin"} {
		found, _ := filepath.Glob(pattern)
		slices.SortFunc(found, func(a, b string) int { return cmp.Compare(majorVersion(b), majorVersion(a)) })
		dirs = append(dirs, found...)
	}
	if out, err := exec.Command("pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	if path, err := exec.LookPath("postgres"); err == nil {
		dirs = append(dirs, filepath.Dir(path))
	}
	for _, dir := range dirs {
		if executable(dir, "postgres") && executable(dir, "initdb") {
			return dir, true
		}
	}
	return "", false
}

// majorVersion reads 15 out of /usr/lib/postgresql/15/bin and /usr/pgsql-15/bin.
func majorVersion(bin string) int {
	name := filepath.Base(filepath.Dir(bin))
	n, _ := strconv.Atoi(name[strings.LastIndexByte(name, '-')+1:])
	return n
}

func executable(dir, name string) bool {
	_, err := exec.LookPath(filepath.Join(dir, name))
	return err == nil
}
