-- Delete the state of a partition, complete or not, so that the next owner begins with nothing.
--
-- KEYS[1..4]  meta, changes, pages, outbox
-- KEYS[5..7]  staged changes, pages and outbox
--
-- ARGV[1]  owner     that the caller read; empty: there was none
-- ARGV[2]  version   that the caller read; empty: there was none
--
-- Returns FENCED, REWOUND or OK; nothing is deleted unless OK.

local meta = redis.call('HMGET', KEYS[1], 'owner', 'version')
if (meta[1] or '') ~= ARGV[1] then
  return 'FENCED'
end
if (meta[2] or '') ~= ARGV[2] then
  return 'REWOUND'
end
redis.call('DEL', unpack(KEYS))
return 'OK'
