// Package turnstile charges runs of dp-turnstile. It is written from deploy/asyncapi.yaml alone.
//
// It does not look at signatures: where workers sign what they publish, add that (the document says
// how), or somebody else who may write to the topic of answers could admit users.
package turnstile

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const version = 1

// Client is a connection to the topics of a service. One goroutine at a time may use it.
type Client struct {
	// Partitions says over how many partitions users are spread.
	Partitions int32

	kafka, events         *kgo.Client
	norms, halts, rejects string
}

// Policy fixes what each user of a dataset may spend. Amounts are whole units of 2^-44.
type Policy struct {
	Dataset      string  `json:"dataset"`
	Partitions   int32   `json:"partitions"`
	Measure      string  `json:"measure"`
	Budget       []int64 `json:"budget"`
	OdometerStep []int64 `json:"odometer_step"`
	UserIDs      string  `json:"user_ids"`
}

// Run is one attempt of a run: a newer one fences it.
type Run struct {
	Dataset, Name string
	Attempt       int64
	// Step is the next one to charge.
	Step int64

	client *Client
}

// Collect has the terms of a run that collects the norms of its steps.
type Collect struct {
	// ClipNorm is the largest norm that a user may send.
	ClipNorm float64 `json:"clip_norm"`
}

// Refused is the error of a request that a worker did not apply.
type Refused struct{ Reason, Detail string }

func (r Refused) Error() string { return fmt.Sprintf("refused: %s: %s", r.Reason, r.Detail) }

type answer map[string]any

// Open connects to a broker and finds the topics with this prefix.
func Open(ctx context.Context, brokers []string, prefix string) (*Client, error) {
	c := &Client{norms: prefix + "norms", halts: prefix + "halts", rejects: prefix + "rejects"}
	asking, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		return nil, err
	}
	defer asking.Close()
	// Answers are read from here on: whatever is asked later is answered later.
	ends, err := kadm.NewClient(asking).ListEndOffsets(ctx, c.halts, c.rejects)
	if err != nil {
		return nil, err
	}
	if err := ends.Error(); err != nil {
		return nil, fmt.Errorf("start a worker, which creates the topics: %w", err)
	}
	from := map[string]map[int32]kgo.Offset{}
	for topic, partitions := range ends.Offsets() {
		from[topic] = map[int32]kgo.Offset{}
		for partition, end := range partitions {
			from[topic][partition] = kgo.NewOffset().At(end.At)
		}
	}
	c.Partitions = int32(len(from[c.halts]))
	c.kafka, err = kgo.NewClient(
		kgo.SeedBrokers(brokers...),
		kgo.ConsumePartitions(from),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		// The sender says in which partition a user lives. Not in a transaction, ever.
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
	)
	if err != nil {
		return nil, err
	}
	// Norm events have keys, which the default partitioner hashes as Kafka's clients for Java do.
	c.events, err = kgo.NewClient(
		kgo.SeedBrokers(brokers...),
		kgo.DefaultProduceTopic(c.norms),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
	)
	if err != nil {
		c.kafka.Close()
		return nil, err
	}
	return c, nil
}

// Close disconnects.
func (c *Client) Close() {
	c.events.Close()
	c.kafka.Close()
}

// CreateDataset fixes a policy everywhere. The same one again is fine.
func (c *Client) CreateDataset(ctx context.Context, policy Policy) error {
	token := newToken()
	request := map[string]any{"v": version, "type": "create-dataset", "request": token, "policy": policy}
	_, err := c.ask(ctx, c.everywhere(request), func(a answer) bool { return a["request"] == token })
	return err
}

// OpenRun begins a run, or resumes it behind the last step that was decided everywhere.
//
// With terms in collect, the run decides over the norms that users send. Without, collect is nil.
func (c *Client) OpenRun(ctx context.Context, dataset, name string, collect *Collect) (*Run, error) {
	token, attempt := newToken(), int64(0) // 0: the next one
	asked := c.everyPartition()
	opened := map[int32]answer{}
	for len(asked) > 0 {
		request := map[string]any{
			"v": version, "type": "open-run", "dataset": dataset, "run": name,
			"attempt": attempt, "request": token,
		}
		if collect != nil {
			request["collect"] = collect
		}
		found, err := c.ask(ctx, only(asked, request), func(a answer) bool {
			return a["request"] == token
		})
		if err != nil {
			return nil, err
		}
		for partition, a := range found {
			opened[partition] = a
			attempt = max(attempt, number(a["attempt"]))
		}
		asked = nil
		for partition, a := range opened { // partitions that gave a lower one are asked again
			if number(a["attempt"]) < attempt {
				asked = append(asked, partition)
			}
		}
	}
	last := number(opened[0]["last_step"])
	for _, a := range opened {
		if !reflect.DeepEqual(a["policy"], opened[0]["policy"]) {
			return nil, fmt.Errorf("dataset %q has two policies", dataset)
		}
		last = min(last, number(a["last_step"]))
	}
	return &Run{Dataset: dataset, Name: name, Attempt: attempt, Step: last + 1, client: c}, nil
}

// Charge has one Gaussian step decided in every partition, and says who of the users is admitted.
//
// Release the step only after that, over the admitted. After an error charge the same users and norms
// again: it is the same step, charged once.
func (r *Run) Charge(ctx context.Context, users []int64, norms []float64, noise float64) ([]bool, error) {
	places := map[int32][]int{}
	for place, user := range users {
		partition := PartitionOf(user, r.client.Partitions)
		places[partition] = append(places[partition], place)
	}
	requests := map[int32]any{}
	for _, partition := range r.client.everyPartition() {
		here, their := []int64{}, []float64{}
		for _, place := range places[partition] {
			here, their = append(here, users[place]), append(their, norms[place])
		}
		requests[partition] = r.charge(here, their, noise)
	}
	found, err := r.client.ask(ctx, requests, r.isDecision)
	if err != nil {
		return nil, err
	}
	admitted := make([]bool, len(users))
	for partition, decision := range found {
		here := places[partition]
		flags, err := flagsOf(decision["admitted"], len(here))
		if err != nil || number(decision["users"]) != int64(len(here)) {
			return nil, fmt.Errorf("partition %d decided about other users", partition)
		}
		for position, place := range here {
			admitted[place] = flags[position]
		}
	}
	r.Step++
	return admitted, nil
}

// SendNorms publishes the norms of users for the next step, one event for each user.
//
// It stands for the users' own programs, which need nothing but a Kafka client.
func (r *Run) SendNorms(ctx context.Context, norms map[string]float64) error {
	records := []*kgo.Record{}
	for user, norm := range norms {
		value, err := json.Marshal(map[string]any{
			"type": "norm", "dataset": r.Dataset, "run": r.Name, "step": r.Step, "user": user, "norm": norm,
		})
		if err != nil {
			return err
		}
		records = append(records, &kgo.Record{Key: []byte(user), Value: value})
	}
	return r.client.events.ProduceSync(ctx, records...).FirstErr()
}

// ChargeCollected decides one Gaussian step over the norms that have arrived.
//
// It returns the admitted users, whose ids are strings, with the norms to which their contributions
// must be clipped.
func (r *Run) ChargeCollected(ctx context.Context, noise float64) (map[string]float64, error) {
	request := r.charge([]int64{}, []float64{}, noise)
	request["collected"] = true
	found, err := r.client.ask(ctx, r.client.everywhere(request), r.isDecision)
	if err != nil {
		return nil, err
	}
	granted := map[string]float64{}
	for partition, decision := range found {
		users, readable := decision["collected"].([]any)
		norms, err := normsOf(decision["norms"])
		if !readable || err != nil || len(norms) != len(users) {
			return nil, fmt.Errorf("partition %d did not decide over strings and their norms", partition)
		}
		for place, user := range users {
			granted[fmt.Sprint(user)] = norms[place]
		}
	}
	r.Step++
	return granted, nil
}

// charge makes the request for one partition.
func (r *Run) charge(users []int64, norms []float64, noise float64) map[string]any {
	return map[string]any{
		"v": version, "type": "charge", "dataset": r.Dataset, "run": r.Name,
		"attempt": r.Attempt, "step": r.Step, "users": users, "norms": norms,
		"mechanism": "gaussian", "scale": noise,
	}
}

// isDecision says whether an answer decides the step that is charged.
func (r *Run) isDecision(a answer) bool {
	return a["run"] == r.Name && a["dataset"] == r.Dataset && a["digest"] != nil &&
		number(a["attempt"]) == r.Attempt && number(a["step"]) == r.Step
}

// Close ends the run for good.
func (r *Run) Close(ctx context.Context) error {
	token := newToken()
	request := map[string]any{
		"v": version, "type": "close-run", "dataset": r.Dataset, "run": r.Name,
		"attempt": r.Attempt, "request": token,
	}
	_, err := r.client.ask(ctx, r.client.everywhere(request), func(a answer) bool {
		return a["request"] == token
	})
	return err
}

// ask sends a request to each of these partitions and waits for an answer from each.
func (c *Client) ask(
	ctx context.Context, requests map[int32]any, isMine func(answer) bool,
) (map[int32]answer, error) {
	for partition, request := range requests {
		value, err := json.Marshal(request)
		if err != nil {
			return nil, err
		}
		record := &kgo.Record{Topic: c.norms, Partition: partition, Value: value}
		if err := c.kafka.ProduceSync(ctx, record).FirstErr(); err != nil {
			return nil, err
		}
	}
	found := map[int32]answer{}
	for len(found) < len(requests) {
		fetched := c.kafka.PollFetches(ctx)
		if err := fetched.Err(); err != nil {
			return nil, err
		}
		var refused error
		fetched.EachRecord(func(record *kgo.Record) {
			var told answer
			request, wanted := requests[record.Partition]
			decoder := json.NewDecoder(bytes.NewReader(record.Value))
			decoder.UseNumber() // an attempt may have more digits than a float64
			if !wanted || decoder.Decode(&told) != nil {
				return
			}
			switch {
			case record.Topic == c.rejects && (isMine(told) || isSameStep(told, request)):
				refused = Refused{fmt.Sprint(told["reason"]), fmt.Sprint(told["detail"])}
			case record.Topic == c.halts && isMine(told):
				found[record.Partition] = told
			}
		})
		if refused != nil {
			return nil, refused
		}
	}
	return found, nil
}

// isSameStep says whether a rejection is of this charge.
func isSameStep(rejected answer, request any) bool {
	asked, known := request.(map[string]any)
	if !known || asked["type"] != "charge" || rejected["step"] == nil || rejected["attempt"] == nil {
		return false
	}
	return rejected["dataset"] == asked["dataset"] && rejected["run"] == asked["run"] &&
		number(rejected["attempt"]) == asked["attempt"] && number(rejected["step"]) == asked["step"]
}

func (c *Client) everyPartition() []int32 {
	all := make([]int32, c.Partitions)
	for partition := range all {
		all[partition] = int32(partition)
	}
	return all
}

func (c *Client) everywhere(request any) map[int32]any { return only(c.everyPartition(), request) }

func only(partitions []int32, request any) map[int32]any {
	requests := map[int32]any{}
	for _, partition := range partitions {
		requests[partition] = request
	}
	return requests
}

// flagsOf reads one flag for each user: a list, or bits in base64 for more than 1,024 users.
func flagsOf(value any, count int) ([]bool, error) {
	flags := make([]bool, count)
	switch found := value.(type) {
	case []any:
		if len(found) != count {
			return nil, errors.New("flags of other users")
		}
		for place, flag := range found {
			flags[place] = flag == true
		}
	case string:
		bits, err := base64.StdEncoding.DecodeString(found)
		if err != nil || len(bits) != (count+7)/8 {
			return nil, errors.New("flags of other users")
		}
		for place := range flags {
			flags[place] = bits[place/8]>>(place%8)&1 == 1
		}
	default:
		return nil, errors.New("no flags")
	}
	return flags, nil
}

// normsOf reads norms: a list, or little-endian float64 in base64 for more than 1,024 users.
func normsOf(value any) ([]float64, error) {
	norms := []float64{}
	switch found := value.(type) {
	case []any:
		for _, each := range found {
			read, _ := each.(json.Number)
			norm, err := read.Float64()
			if err != nil {
				return nil, err
			}
			norms = append(norms, norm)
		}
	case string:
		packed, err := base64.StdEncoding.DecodeString(found)
		if err != nil || len(packed)%8 != 0 {
			return nil, errors.New("no norms")
		}
		for ; len(packed) > 0; packed = packed[8:] {
			norms = append(norms, math.Float64frombits(binary.LittleEndian.Uint64(packed)))
		}
	default:
		return nil, errors.New("no norms")
	}
	return norms, nil
}

// number reads a whole number; -1 if there is none.
func number(value any) int64 {
	read, _ := value.(json.Number)
	if whole, err := read.Int64(); err == nil {
		return whole
	}
	return -1
}

func newToken() string {
	random := make([]byte, 16)
	if _, err := rand.Read(random); err != nil {
		panic(err)
	}
	return hex.EncodeToString(random)
}
