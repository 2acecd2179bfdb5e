-- Replace the state of a partition by the staged snapshot, atomically.
--
-- KEYS[1..4]  meta, changes, pages, outbox
-- KEYS[5..7]  staged changes, pages and outbox
--
-- ARGV[1]  owner
-- ARGV[2]  version
-- ARGV[3..5]  numbers of deltas, pages and outbox entries that were staged
-- ARGV[6..]   fields and values of meta for the staged state
--
-- Returns FENCED, REWOUND, DAMAGED or OK; nothing is written unless OK. It is also DAMAGED if
-- staged entries are missing.

local refused = refusal()
if refused then
  return refused
end
if redis.call('LLEN', KEYS[5]) ~= tonumber(ARGV[3])
  or redis.call('HLEN', KEYS[6]) ~= tonumber(ARGV[4])
  or redis.call('HLEN', KEYS[7]) ~= tonumber(ARGV[5]) then
  return 'DAMAGED'
end

for place = 2, 4 do
  redis.call('DEL', KEYS[place])
  if redis.call('EXISTS', KEYS[place + 3]) == 1 then
    redis.call('RENAME', KEYS[place + 3], KEYS[place])
  end
end
for field = 6, #ARGV, 2 do
  redis.call('HSET', KEYS[1], ARGV[field], ARGV[field + 1])
end
return written()
