package turnstile

import "encoding/binary"

// PartitionOf says where a user lives: where Kafka's default partitioner puts the id.
func PartitionOf(user int64, partitions int32) int32 {
	key := binary.BigEndian.AppendUint64(nil, uint64(user))
	return int32(murmur2(key)&0x7fffffff) % partitions
}

// murmur2 is the hash of Kafka's clients for Java.
func murmur2(key []byte) uint32 {
	const m, r = 0x5bd1e995, 24
	hash := uint32(0x9747b28c) ^ uint32(len(key))
	for ; len(key) >= 4; key = key[4:] {
		k := binary.LittleEndian.Uint32(key) * m
		k ^= k >> r
		hash = hash*m ^ k*m
	}
	switch len(key) {
	case 3:
		hash ^= uint32(key[2]) << 16
		fallthrough
	case 2:
		hash ^= uint32(key[1]) << 8
		fallthrough
	case 1:
		hash = (hash ^ uint32(key[0])) * m
	}
	hash ^= hash >> 13
	hash *= m
	return hash ^ hash>>15
}
