.PHONY: help demo test race check bench torture torture-brief ci

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "%-14s %s\n", $$1, $$2 }'

demo: ## three replicas of a service: watch who leads; three workers: watch who works on what
	go run ./examples/failover
	go run ./examples/workers

test: ## the specification, on SQLite and Postgres
	go test ./...

race: ## the same with the race detector, in any order; fails without a Postgres
	LEASE_REQUIRE_POSTGRES=1 go test -race -shuffle=on ./...

check: ## format, tidiness, vet, staticcheck
	@test -z "$$(gofmt -l .)" || { gofmt -l .; echo "run gofmt -w on these" >&2; exit 1; }
	go mod tidy -diff
	go vet ./...
	go tool staticcheck ./...

bench: ## what renewals, saves and claims cost, beside the same statements through database/sql
	go test -run '^$$' -bench . .

torture: ## ten minutes of every fault on each database; checks what came of it
	go run ./internal/torture -backend sqlite -duration 10m -ttl 800ms
	go run ./internal/torture -backend postgres -duration 10m -ttl 800ms

# A seed that is always the same, and a fresh one.
torture-brief: ## a minute of every fault on each database, twice
	go run ./internal/torture -backend sqlite -duration 1m -seed 1
	go run ./internal/torture -backend postgres -duration 1m -seed 1
	go run ./internal/torture -backend sqlite -duration 1m
	go run ./internal/torture -backend postgres -duration 1m

ci: check race test demo torture-brief ## all of it, as .ci/run does
