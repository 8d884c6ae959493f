// SPDX-License-Identifier: Apache-2.0 OR MIT

// Checks a history of words and map entries for linearizability, with porcupine (MIT).
//
// Usage   linearizability FILE: one JSON object a line, as services/traverse/tests/replica_etcd/history.rs writes it
// Model   a word has a number; an entry of a map has a number or is not there. Each key is checked by itself
// Unknown an operation without an answer ("return": -1) may happen at any time after it was asked, or never
// Exit    0: linearizable; 1: not; 2: unknown, because a check took more than five minutes, or the file cannot be read
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

type operation struct {
	Client int    `json:"client"`
	Key    string `json:"key"`
	Op     string `json:"op"`
	Value  uint64 `json:"value"`
	Call   int64  `json:"call"`
	Return int64  `json:"return"`
	Done   bool   `json:"done"`
	Found  bool   `json:"found"`
	Out    uint64 `json:"out"`
}

type state struct {
	there bool
	value uint64
}

// step returns whether the operation may have this outcome in the state before it, and the state behind it.
func step(before state, one operation) (bool, state) {
	unknown := one.Return < 0
	same := unknown || one.Out == before.value
	switch one.Op {
	case "read":
		return same, before
	case "write":
		return true, state{true, one.Value}
	case "add":
		return same, state{true, before.value + one.Value}
	case "swap":
		if before.value == one.Value {
			return unknown || (one.Done && same), state{true, one.Value + 1}
		}
		return unknown || (!one.Done && same), before
	case "get":
		return unknown || (one.Found == before.there && (!one.Found || same)), before
	case "put":
		return unknown || one.Done == !before.there, state{true, one.Value}
	case "remove":
		return unknown || one.Done == before.there, state{}
	}
	return false, before
}

var model = porcupine.Model{
	Init: func() interface{} { return state{} },
	Step: func(before, input, _ interface{}) (bool, interface{}) {
		return step(before.(state), input.(operation))
	},
	Equal: func(one, other interface{}) bool { return one == other },
}

func fail(code int, format string, values ...interface{}) {
	fmt.Printf(format+"\n", values...)
	os.Exit(code)
}

func main() {
	if len(os.Args) != 2 {
		fail(2, "usage: linearizability FILE")
	}
	file, err := os.Open(os.Args[1])
	if err != nil {
		fail(2, "%v", err)
	}
	keys := map[string][]porcupine.Operation{}
	lines := bufio.NewScanner(file)
	for number := 1; lines.Scan(); number++ {
		var one operation
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			fail(2, "line %d: %v", number, err)
		}
		ended := one.Return
		if ended < 0 {
			ended = math.MaxInt64
		}
		keys[one.Key] = append(keys[one.Key], porcupine.Operation{
			ClientId: one.Client, Input: one, Call: one.Call, Output: one.Out, Return: ended,
		})
	}
	if err := lines.Err(); err != nil {
		fail(2, "%v", err)
	}
	names := make([]string, 0, len(keys))
	for name := range keys {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		switch porcupine.CheckOperationsTimeout(model, keys[name], 5*time.Minute) {
		case porcupine.Illegal:
			fail(1, "%s: its %d operations are not linearizable", name, len(keys[name]))
		case porcupine.Unknown:
			fail(2, "%s: its %d operations were not checked within five minutes", name, len(keys[name]))
		}
	}
	fmt.Printf("%d keys are linearizable\n", len(keys))
}
