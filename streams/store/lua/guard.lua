-- What every script of an owner begins with: this text stands before each of them.
--
-- KEYS[1]  meta      hash: what the partition belongs to, how far it is, how much there is of it
-- KEYS[2]  changes   list: state changes since they were last compacted into pages
-- KEYS[3]  pages     hash: name -> compacted state
-- KEYS[4]  outbox    hash: name -> outputs that may not have been published
--
-- ARGV[1]  owner     token of the claim
-- ARGV[2]  version   as the owner knows it: every write moves it by one

-- Why the owner must not write: somebody else owns the partition; Redis went back to an earlier
-- state, or forward without this owner; something that was written is gone. False if it may.
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

-- The end of a write: count what there is now and move the version.
local function written()
  redis.call('HSET', KEYS[1],
    'changes', redis.call('LLEN', KEYS[2]),
    'pages', redis.call('HLEN', KEYS[3]),
    'outbox', redis.call('HLEN', KEYS[4]))
  redis.call('HINCRBY', KEYS[1], 'version', 1)
  return 'OK'
end

