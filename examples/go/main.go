// Charge a few steps of a run, and say who is admitted to each.
//
//	turnstile up --json &
//	go run . localhost:9092
package main

import (
	"context"
	"encoding/json"
	"fmt"
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
	if err := chargeUsers(ctx, client); err != nil {
		return err
	}
	return chargeSenders(ctx, client)
}

// chargeUsers charges users whose norms the program knows.
func chargeUsers(ctx context.Context, client *turnstile.Client) error {
	run, err := open(ctx, client, "from-go", "integer", nil)
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

// chargeSenders charges users who sent their norms.
func chargeSenders(ctx context.Context, client *turnstile.Client) error {
	run, err := open(ctx, client, "events-from-go", "string", &turnstile.Collect{ClipNorm: 1})
	if err != nil {
		return err
	}
	sent := map[string]float64{}
	for user := 1; user <= 8; user++ {
		sent[fmt.Sprintf("meter-%d", user)] = float64(user) / 8
	}
	for range 2 {
		step := run.Step
		if err := run.SendNorms(ctx, sent); err != nil {
			return err
		}
		granted, err := run.ChargeCollected(ctx, 1.0)
		if err != nil {
			return err
		}
		told := map[string]any{"step": step, "norms": granted}
		if err := json.NewEncoder(os.Stdout).Encode(told); err != nil {
			return err
		}
	}
	return run.Close(ctx)
}

// open creates a dataset with a budget of mu squared = 1, and opens a run of it.
func open(
	ctx context.Context, client *turnstile.Client, dataset, userIDs string, collect *turnstile.Collect,
) (*turnstile.Run, error) {
	err := client.CreateDataset(ctx, turnstile.Policy{
		Dataset:      dataset,
		Partitions:   client.Partitions,
		Measure:      "gdp",
		Budget:       []int64{unit},
		OdometerStep: []int64{unit / 8},
		UserIDs:      userIDs,
	})
	if err != nil {
		return nil, err
	}
	return client.OpenRun(ctx, dataset, "example", collect)
}
