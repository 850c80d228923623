// Package spec specifies the lease package by tests that use only what the
// lease package exports.
package spec
