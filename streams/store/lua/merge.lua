-- Write some pages of a partition, or drop the deltas that pages cover.
--
-- KEYS[1..4]  meta, changes, pages, outbox
--
-- ARGV[1]  owner
-- ARGV[2]  version
-- ARGV[3]  digest    the digest of all pages after this write
-- ARGV[4]  since     the offset at which the deltas begin after this write
-- ARGV[5]  meta_digest   of meta after this write
-- ARGV[6]  drop      the number of oldest deltas to drop
-- ARGV[7]  number of pages; then that many pairs of a name and a page
-- then     names of pages to delete
--
-- Returns FENCED, REWOUND, DAMAGED or OK; nothing is written unless OK. Pages may be written before
-- their deltas are dropped: deltas record what newer pages have.

local refused = refusal()
if refused then
  return refused
end

local at = 7
for _ = 1, tonumber(ARGV[7]) do
  redis.call('HSET', KEYS[3], ARGV[at + 1], ARGV[at + 2])
  at = at + 2
end
for name = at + 1, #ARGV do
  redis.call('HDEL', KEYS[3], ARGV[name])
end
if tonumber(ARGV[6]) > 0 then
  redis.call('LTRIM', KEYS[2], ARGV[6], -1)
end
redis.call('HSET', KEYS[1],
  'digest', ARGV[3], 'since', ARGV[4], 'meta_digest', ARGV[5])
return written()
