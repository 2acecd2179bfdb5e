-- Append one batch of a partition, atomically, once, and only for the owner.
--
-- KEYS[1..4]  meta, changes, pages, outbox
-- KEYS[5..7]  staged changes, pages and outbox
--
-- ARGV[1]  owner
-- ARGV[2]  version
-- ARGV[3]  first     the offset of the first record of the batch
-- ARGV[4]  next      the offset after the last record of the batch
-- ARGV[5]  head      the head of the hash chain after the batch
-- ARGV[6]  before    the head of the hash chain before the last record of the batch
-- ARGV[7]  last      the offset of that record
-- ARGV[8]  leader_epoch   the leader epoch of that record
-- ARGV[9]  meta_digest    of meta after the batch
-- ARGV[10] staged_changes   the number of deltas that were staged for this batch
-- ARGV[11] staged_outbox    likewise, of outbox entries
-- ARGV[12] number of deltas; then that many packed deltas, which follow the staged ones
-- then     number of outbox entries; then that many pairs of a name and packed outputs
-- then     names of outbox entries that have been published
--
-- Returns FENCED, REWOUND, DAMAGED, DUPLICATE, GAP or OK. It is also DAMAGED if staged entries are
-- missing. Nothing is written unless OK: every check precedes the first write, because Redis does not undo the
-- writes of a failed script. Long lists are written one by one: `unpack` has a limit, and would fail
-- after the first write.

local refused = refusal()
if refused then
  return refused
end
local expected = tonumber(redis.call('HGET', KEYS[1], 'next'))
if not expected then
  return 'DAMAGED'
end
local first = tonumber(ARGV[3])
if first < expected then
  return 'DUPLICATE'
end
if first > expected then
  return 'GAP'
end

local staged = tonumber(ARGV[10]) + tonumber(ARGV[11]) > 0
if staged and (redis.call('LLEN', KEYS[5]) ~= tonumber(ARGV[10])
  or redis.call('HLEN', KEYS[7]) ~= tonumber(ARGV[11])) then
  return 'DAMAGED'
end

if staged then
  for _, delta in ipairs(redis.call('LRANGE', KEYS[5], 0, -1)) do
    redis.call('RPUSH', KEYS[2], delta)
  end
  local outputs = redis.call('HGETALL', KEYS[7])
  for field = 1, #outputs, 2 do
    redis.call('HSET', KEYS[4], outputs[field], outputs[field + 1])
  end
  redis.call('DEL', KEYS[5], KEYS[6], KEYS[7])
end
local at = 12
for _ = 1, tonumber(ARGV[at]) do
  at = at + 1
  redis.call('RPUSH', KEYS[2], ARGV[at])
end
at = at + 1
for _ = 1, tonumber(ARGV[at]) do
  redis.call('HSET', KEYS[4], ARGV[at + 1], ARGV[at + 2])
  at = at + 2
end
for name = at + 1, #ARGV do
  redis.call('HDEL', KEYS[4], ARGV[name])
end
redis.call('HSET', KEYS[1],
  'next', ARGV[4], 'head', ARGV[5], 'before', ARGV[6], 'last', ARGV[7],
  'leader_epoch', ARGV[8], 'meta_digest', ARGV[9])
return written()
