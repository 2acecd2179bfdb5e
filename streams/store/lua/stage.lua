-- Store a piece of a snapshot or of a large batch beside the state. This is not state: the version
-- stays.
--
-- KEYS[1..4]  meta, changes, pages, outbox
-- KEYS[5..7]  staged changes, pages and outbox
--
-- ARGV[1]  owner
-- ARGV[2]  version
-- ARGV[3]  1: delete what was staged before; 0: add to it
-- ARGV[4]  number of pages; then that many pairs of a name and a page
-- then     number of deltas; then that many packed deltas
-- then     pairs of a name and packed outputs
--
-- Returns FENCED, REWOUND, DAMAGED or OK; nothing is written unless OK.

local refused = refusal()
if refused then
  return refused
end

if ARGV[3] == '1' then
  redis.call('DEL', KEYS[5], KEYS[6], KEYS[7])
end
local at = 4
for _ = 1, tonumber(ARGV[at]) do
  redis.call('HSET', KEYS[6], ARGV[at + 1], ARGV[at + 2])
  at = at + 2
end
at = at + 1
for _ = 1, tonumber(ARGV[at]) do
  at = at + 1
  redis.call('RPUSH', KEYS[5], ARGV[at])
end
for name = at + 1, #ARGV, 2 do
  redis.call('HSET', KEYS[7], ARGV[name], ARGV[name + 1])
end
return 'OK'
