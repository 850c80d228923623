package dbtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const (
	dockerTimeout  = 10 * time.Second // to say that it is there
	composeTimeout = 5 * time.Minute  // to fetch an image and start it
)

// errNoDocker means that there is no Docker, or no docker-compose.yml.
var errNoDocker = errors.New("no Docker")

// composeUp starts the postgres service of the repository's docker-compose.yml
// in a project of this process's own, and returns its DSN and how to take it
// down. docker is the name of the command.
func composeUp(docker string) (dsn string, down func() error, err error) {
	file, err := composeFile()
	if err != nil {
		return "", nil, errNoDocker
	}
	if _, err := run(dockerTimeout, docker, "info"); err != nil {
		return "", nil, errNoDocker
	}
	compose := func(args ...string) (string, error) {
		project := fmt.Sprintf("lease-test-%d", os.Getpid())
		return run(composeTimeout, docker, append([]string{"compose", "-f", file, "-p", project}, args...)...)
	}
	down = func() error {
		_, err := compose("down", "-v")
		return err
	}
	if _, err := compose("up", "-d", "--wait"); err != nil {
		return "", down, err
	}
	published, err := compose("port", "postgres", "5432")
	if err != nil {
		return "", down, err
	}
	host, port, err := net.SplitHostPort(strings.TrimSpace(published))
	if err != nil {
		return "", down, fmt.Errorf("docker compose port: %w", err)
	}
	return fmt.Sprintf("host=%s port=%s user=postgres password=lease dbname=postgres sslmode=disable", host, port), down, nil
}

// composeFile finds the docker-compose.yml next to the go.mod of the module
// that the working directory is in.
func composeFile() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			file := filepath.Join(dir, "docker-compose.yml")
			_, err := os.Stat(file)
			return file, err
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no go.mod above the working directory")
		}
		dir = parent
	}
}

// run runs a command to its end and returns its standard output.
func run(timeout time.Duration, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	var stderr strings.Builder
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, lastLines(stderr.String()))
	}
	return string(out), nil
}
