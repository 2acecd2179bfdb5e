-- Write some folded state of a partition, or drop deltas that the folded state now covers.
--
-- KEYS[1]  meta      hash: owner, next
-- KEYS[2]  deltas    list
-- KEYS[3]  folded    hash: field -> packed state
--
-- ARGV[1]  owner     token of the claim
-- ARGV[2]  next      the offset up to which the state to write is folded
-- ARGV[3]  drop      how many of the oldest deltas to drop
-- ARGV[4..]          field, value, field, value ...
--
-- Returns OK, FENCED, DUPLICATE or GAP. `next` must be what it was when the state was taken: after
-- a rollback of Redis the owner's state would be ahead, and its charges would count twice.

local meta = redis.call('HMGET', KEYS[1], 'owner', 'next')
if meta[1] ~= ARGV[1] then
  return 'FENCED'
end
if tonumber(ARGV[2]) < tonumber(meta[2]) then
  return 'DUPLICATE'
end
if tonumber(ARGV[2]) > tonumber(meta[2]) then
  return 'GAP'
end

for field = 4, #ARGV, 2 do
  redis.call('HSET', KEYS[3], ARGV[field], ARGV[field + 1])
end
if tonumber(ARGV[3]) > 0 then
  redis.call('LTRIM', KEYS[2], ARGV[3], -1)
end
return 'OK'
