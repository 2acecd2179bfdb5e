-- Acquire ownership of a partition, which fences every other owner.
--
-- KEYS[1..4]  meta, changes, pages, outbox
-- KEYS[5..7]  staged changes, pages and outbox
--
-- ARGV[1]    owner   token of the new owner
-- ARGV[2]    1: delete the state first, complete or not; 0: keep it
-- ARGV[3]    with 1: the owner that the caller read; empty: there was none
-- ARGV[4]    with 1: the version that the caller read; empty: there was none
-- ARGV[5..]  meta of a log of which nothing has been applied: fields and values, beginning with
--             layout, topic (its id) and partitions (the number of partitions of the topic)
--
-- Returns FOREIGN, FENCED, REWOUND, DAMAGED, MISFIT or OK, then the previous meta as a list of fields and values
-- (empty: there was none). Nothing is written unless OK.

local kinds = {'hash', 'list', 'hash', 'hash'}
for place, kind in ipairs(kinds) do
  local found = redis.call('TYPE', KEYS[place]).ok
  if found ~= 'none' and found ~= kind then
    return {'FOREIGN', {}}
  end
end

if ARGV[2] == '1' then
  local meta = redis.call('HMGET', KEYS[1], 'owner', 'version')
  if (meta[1] or '') ~= ARGV[3] then
    return {'FENCED', {}}
  end
  if (meta[2] or '') ~= ARGV[4] then
    return {'REWOUND', {}}
  end
  redis.call('DEL', unpack(KEYS))
end
local before = redis.call('HGETALL', KEYS[1])
if #before == 0 then
  if redis.call('EXISTS', KEYS[2], KEYS[3], KEYS[4]) > 0 then
    return {'DAMAGED', before}
  end
  redis.call('HSET', KEYS[1], unpack(ARGV, 5))
else
  local meta = redis.call('HMGET', KEYS[1], 'layout', 'topic', 'partitions')
  if meta[1] ~= ARGV[6] or meta[2] ~= ARGV[8] or meta[3] ~= ARGV[10] then
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
