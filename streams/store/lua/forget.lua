-- Delete outbox entries that have been published.
--
-- KEYS[1..4]  meta, changes, pages, outbox
--
-- ARGV[1]  owner
-- ARGV[2]  version
-- ARGV[3..]  names of the entries
--
-- Returns FENCED, REWOUND, DAMAGED or OK; nothing is written unless OK.

local refused = refusal()
if refused then
  return refused
end
for name = 3, #ARGV do
  redis.call('HDEL', KEYS[4], ARGV[name])
end
return written()
