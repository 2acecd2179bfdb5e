-- Read the state of a partition without its pages, if it is what the owner left.
--
-- KEYS[1..4]  meta, changes, pages, outbox
--
-- ARGV[1]  owner
-- ARGV[2]  version
--
-- Returns FENCED, REWOUND, DAMAGED or OK; after OK meta, as a list of fields and values, the deltas
-- and the outbox, as a list of names and entries. Nothing is written.

local refused = refusal()
if refused then
  return {refused}
end
return {
  'OK',
  redis.call('HGETALL', KEYS[1]),
  redis.call('LRANGE', KEYS[2], 0, -1),
  redis.call('HGETALL', KEYS[4]),
}
