-- Store a piece of a large write beside the state. This is not state: the version stays.
--
-- KEYS[1..4]  meta, changes, pages, outbox
-- KEYS[5..7]  staged changes, pages and outbox
--
-- ARGV[1]  owner
-- ARGV[2]  version
-- ARGV[3]  1: delete what was staged before; 0: add to it
-- ARGV[4..]  deltas, pages and outbox entries, see `add`
--
-- Returns FENCED, REWOUND, DAMAGED or OK; nothing is written unless OK.

local refused = refusal()
if refused then
  return refused
end

if ARGV[3] == '1' then
  redis.call('DEL', KEYS[5], KEYS[6], KEYS[7])
end
add(5, 4)
return 'OK'
