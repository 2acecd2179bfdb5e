-- What every script of an owner begins with: the store prepends this text to each of them.
--
-- KEYS[1]  meta      hash: the log of the partition, its progress, the number of entries
-- KEYS[2]  changes   list: deltas that were not merged into pages yet
-- KEYS[3]  pages     hash: name -> merged state
-- KEYS[4]  outbox    hash: name -> outputs that may not have been published
--
-- ARGV[1]  owner     token of the owner
-- ARGV[2]  version   after the owner's last write: every write increments it

-- Return why the owner must not write, or false if it may. FENCED: another worker owns the
-- partition. REWOUND: Redis has an earlier state, or a later one that this owner did not write.
-- DAMAGED: entries that were written are gone.
local function refusal()
  local meta = redis.call('HMGET', KEYS[1], 'owner', 'version', 'changes', 'pages', 'outbox')
  if meta[1] ~= ARGV[1] then
    return 'FENCED'
  end
  if meta[2] ~= ARGV[2] then
    return 'REWOUND'
  end
  if redis.call('LLEN', KEYS[2]) ~= tonumber(meta[3])
    or redis.call('HLEN', KEYS[3]) ~= tonumber(meta[4])
    or redis.call('HLEN', KEYS[4]) ~= tonumber(meta[5]) then
    return 'DAMAGED'
  end
  return false
end

-- Add entries to the list KEYS[first] and the two hashes after it. ARGV has three lists of words
-- from `at` on, each after its length: deltas, names and pages, names and outbox entries. Return
-- where they end. They are written one by one: `unpack` has a limit, and would fail after the first
-- write.
local function add(first, at)
  for key = first, first + 2 do
    local last = at + tonumber(ARGV[at])
    if key == first then
      for word = at + 1, last do
        redis.call('RPUSH', KEYS[key], ARGV[word])
      end
    else
      for word = at + 1, last, 2 do
        redis.call('HSET', KEYS[key], ARGV[word], ARGV[word + 1])
      end
    end
    at = last + 1
  end
  return at
end

