// Charge a few steps of a run, and say who is admitted to each.
//
//	turnstile up --json &
//	go run . localhost:9092
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"
	"time"

	"dp-turnstile/examples/go/turnstile"
)

const unit = 1 << 44

func main() {
	if err := charge(os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}

func charge(arguments []string) error {
	broker, prefix := "localhost:9092", "turnstile."
	if len(arguments) > 0 {
		broker = arguments[0]
	}
	if len(arguments) > 1 {
		prefix = arguments[1]
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := turnstile.Open(ctx, []string{broker}, prefix)
	if err != nil {
		return err
	}
	defer client.Close()
	err = client.CreateDataset(ctx, turnstile.Policy{
		Dataset:      "from-go",
		Partitions:   client.Partitions,
		Measure:      "gdp",
		Budget:       []int64{unit}, // mu squared = 1
		OdometerStep: []int64{unit / 8},
		UserIDs:      "integer",
	})
	if err != nil {
		return err
	}
	run, err := client.OpenRun(ctx, "from-go", "example")
	if err != nil {
		return err
	}
	// User k contributes k/8: at noise 1 a step costs k²/64 of mu squared.
	users, norms := []int64{1, 2, 3, 4, 5, 6, 7, 8}, make([]float64, 8)
	for place, user := range users {
		norms[place] = float64(user) / 8
	}
	for range 5 {
		step := run.Step
		admitted, err := run.Charge(ctx, users, norms, 1.0)
		if err != nil {
			return err
		}
		// Only now release: the sum over the admitted, plus the noise.
		told := map[string]any{"step": step, "admitted": admitted}
		if err := json.NewEncoder(os.Stdout).Encode(told); err != nil {
			return err
		}
	}
	return run.Close(ctx)
}
