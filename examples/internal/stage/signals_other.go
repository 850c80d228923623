//go:build !unix

package stage

import (
	"fmt"
	"os"
	"runtime"
)

func unsupported(*os.Process) error {
	return fmt.Errorf("the demonstration needs the signals of a Unix, which %s has not", runtime.GOOS)
}

var freeze, thaw, askToStop = unsupported, unsupported, unsupported
