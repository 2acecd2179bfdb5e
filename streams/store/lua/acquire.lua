-- Acquire ownership of a partition, which fences every other owner.
--
-- KEYS[1..4]  meta, changes, pages, outbox
--
-- ARGV[1]    owner   token of the new owner
-- ARGV[2..]  meta of a log of which nothing has been applied: fields and values, beginning with
--             layout, topic (its id) and partitions (the number of partitions of the topic)
--
-- Returns FOREIGN, DAMAGED, MISFIT or OK, then the previous meta as a list of fields and values
-- (empty: there was none). Nothing is written unless OK.

local kinds = {'hash', 'list', 'hash', 'hash'}
local there = 0
for place, kind in ipairs(kinds) do
  local found = redis.call('TYPE', KEYS[place]).ok
  if found ~= 'none' and found ~= kind then
    return {'FOREIGN', {}}
  end
  if place > 1 and found ~= 'none' then
    there = there + 1
  end
end

local before = redis.call('HGETALL', KEYS[1])
if #before == 0 then
  if there > 0 then
    return {'DAMAGED', before}
  end
  redis.call('HSET', KEYS[1], unpack(ARGV, 2))
else
  local meta = redis.call('HMGET', KEYS[1], 'layout', 'topic', 'partitions')
  if meta[1] ~= ARGV[3] or meta[2] ~= ARGV[5] or meta[3] ~= ARGV[7] then
    return {'MISFIT', before}
  end
  local counts = redis.call('HMGET', KEYS[1], 'changes', 'pages', 'outbox', 'version')
  if redis.call('LLEN', KEYS[2]) ~= tonumber(counts[1])
    or redis.call('HLEN', KEYS[3]) ~= tonumber(counts[2])
    or redis.call('HLEN', KEYS[4]) ~= tonumber(counts[3])
    or not string.match(counts[4] or '', '^%d+$') then
    return {'DAMAGED', before}
  end
end

redis.call('HSET', KEYS[1], 'owner', ARGV[1])
redis.call('HINCRBY', KEYS[1], 'version', 1)
return {'OK', before}
