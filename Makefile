.PHONY: help demo test race check bench ci

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "%-8s %s\n", $$1, $$2 }'

demo: ## three replicas of a service: watch who leads; three workers: watch who works on what
	go run ./examples/failover
	go run ./examples/workers

test: ## the specification, on SQLite and Postgres
	go test ./...

race: ## the same with the race detector; fails without a Postgres
	LEASE_REQUIRE_POSTGRES=1 go test -race ./...

check: ## format, tidiness, vet, staticcheck
	@test -z "$$(gofmt -l .)" || { gofmt -l .; echo "run gofmt -w on these" >&2; exit 1; }
	go mod tidy -diff
	go vet ./...
	go tool staticcheck ./...

bench: ## what a renewal costs, beside the same UPDATE through database/sql
	go test -run '^$$' -bench . .

ci: check race test demo ## all of it, as .ci/run does
