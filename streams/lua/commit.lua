-- Append one batch of a partition: all of it or nothing, and only by the owner, and only once.
--
-- KEYS[1]  meta      hash: owner, next
-- KEYS[2]  deltas    list: state changes since the fold
-- KEYS[3]  outbox    hash: first offset of a batch -> its outputs, until they are published
--
-- ARGV[1]  owner     token of the claim
-- ARGV[2]  first     offset of the first record of the batch
-- ARGV[3]  next      offset after the last record
-- ARGV[4]  delta     packed
-- ARGV[5]  outputs   packed; empty: nothing to publish
-- ARGV[6..]          first offsets of batches that have been published
--
-- Returns OK, FENCED, DUPLICATE or GAP. Nothing is written unless OK: every check stands before
-- the first write, because a script that fails does not take back what it wrote.

local meta = redis.call('HMGET', KEYS[1], 'owner', 'next')
if meta[1] ~= ARGV[1] then
  return 'FENCED'
end
local expected = tonumber(meta[2])
local first = tonumber(ARGV[2])
if first < expected then
  return 'DUPLICATE'
end
if first > expected then
  return 'GAP'
end

redis.call('RPUSH', KEYS[2], ARGV[4])
if #ARGV[5] > 0 then
  redis.call('HSET', KEYS[3], ARGV[2], ARGV[5])
end
if #ARGV > 5 then
  redis.call('HDEL', KEYS[3], unpack(ARGV, 6))
end
redis.call('HSET', KEYS[1], 'next', ARGV[3])
return 'OK'
