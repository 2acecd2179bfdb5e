-- Change the state of a partition, atomically, and only for the owner.
--
-- KEYS[1..4]  meta, changes, pages, outbox
-- KEYS[5..7]  staged changes, pages and outbox
--
-- ARGV[1]  owner
-- ARGV[2]  version
-- ARGV[3]  first     the offset of the first record of a batch, which is written once; or empty
-- ARGV[4..6]  the numbers of deltas, pages and outbox entries that were staged for this write
-- ARGV[7]  1: delete all deltas, pages and outbox entries first; 0: keep them
-- ARGV[8]  dropped   the number of oldest deltas to delete first
-- ARGV[9..]  deltas, pages and outbox entries to add after those that were staged, see `add`
-- then     three lists of words, each after its length: fields and values of meta, names of pages
--          to delete, names of outbox entries to delete
--
-- Returns FENCED, REWOUND, DAMAGED, DUPLICATE, GAP or OK. It is also DAMAGED if staged entries are
-- missing. Nothing is written unless OK: every check precedes the first write, because Redis does
-- not undo the writes of a failed script.

local refused = refusal()
if refused then
  return refused
end
if ARGV[3] ~= '' then
  local first, expected = tonumber(ARGV[3]), tonumber(redis.call('HGET', KEYS[1], 'next'))
  if not expected then
    return 'DAMAGED'
  end
  if first ~= expected then
    return first < expected and 'DUPLICATE' or 'GAP'
  end
end
local staged = {tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])}
local is_staged = staged[1] + staged[2] + staged[3] > 0
if is_staged and (redis.call('LLEN', KEYS[5]) ~= staged[1]
  or redis.call('HLEN', KEYS[6]) ~= staged[2]
  or redis.call('HLEN', KEYS[7]) ~= staged[3]) then
  return 'DAMAGED'
end

if ARGV[7] == '1' then
  redis.call('DEL', KEYS[2], KEYS[3], KEYS[4])
end
if ARGV[8] ~= '0' then
  redis.call('LTRIM', KEYS[2], ARGV[8], -1)
end
if is_staged then
  for key = 2, 4 do
    local from = KEYS[key + 3]
    if redis.call('EXISTS', KEYS[key]) == 0 then
      if redis.call('EXISTS', from) == 1 then
        redis.call('RENAME', from, KEYS[key])  -- a whole state would be slow to copy
      end
    elseif key == 2 then
      for _, delta in ipairs(redis.call('LRANGE', from, 0, -1)) do
        redis.call('RPUSH', KEYS[key], delta)
      end
    else
      local entries = redis.call('HGETALL', from)
      for name = 1, #entries, 2 do
        redis.call('HSET', KEYS[key], entries[name], entries[name + 1])
      end
    end
  end
end
if is_staged or ARGV[7] == '1' then
  redis.call('DEL', KEYS[5], KEYS[6], KEYS[7])
end
local at = add(2, 9)
local last = at + tonumber(ARGV[at])
for word = at + 1, last, 2 do
  redis.call('HSET', KEYS[1], ARGV[word], ARGV[word + 1])
end
for key = 3, 4 do
  at = last + 1
  last = at + tonumber(ARGV[at])
  for word = at + 1, last do
    redis.call('HDEL', KEYS[key], ARGV[word])
  end
end
redis.call('HSET', KEYS[1],
  'changes', redis.call('LLEN', KEYS[2]),
  'pages', redis.call('HLEN', KEYS[3]),
  'outbox', redis.call('HLEN', KEYS[4]))
redis.call('HINCRBY', KEYS[1], 'version', 1)
return 'OK'
