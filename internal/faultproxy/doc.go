// Package faultproxy is a TCP proxy that fails on command, in front of a real
// server.
//
// A connection through the proxy is in one of three states, told by what becomes
// of the bytes on it:
//
//   - passing: they are forwarded, late if DelayReplies says so;
//   - hung: they are taken in and held, in both directions, and so is the news
//     that a side has closed; the connection stays open, as behind a network that
//     lost its way;
//   - deaf: requests are forwarded, replies are dropped.
//
// Hang, HangExisting and HangNext make connections hung, DropReplies makes them
// deaf. Thaw takes hung ones back to passing and delivers what was held; Heal
// closes hung and deaf ones and delivers nothing. A connection that is hung from
// its first byte reaches the server when it is thawed, not before.
//
// What is on its way through the proxy at the moment of a call may pass; what
// the proxy reads after the call returned is subject to it.
package faultproxy
