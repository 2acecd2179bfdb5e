-- Report that a partition is decided, and its progress. This is not state: the version stays.
--
-- KEYS[1..4]  meta, changes, pages, outbox
-- KEYS[5]     alive     hash: time (of Redis, in seconds), pulse, summary
-- KEYS[6]     suspended   hash: why the partition is suspended; deleted
--
-- ARGV[1]  owner
-- ARGV[2]  version
-- ARGV[3]  pulse     packed
-- ARGV[4]  summary   packed; empty: it is unchanged
--
-- Returns FENCED, REWOUND, DAMAGED or OK; nothing is written unless OK.

local refused = refusal()
if refused then
  return refused
end
redis.call('HSET', KEYS[5], 'time', redis.call('TIME')[1], 'pulse', ARGV[3])
if #ARGV[4] > 0 then
  redis.call('HSET', KEYS[5], 'summary', ARGV[4])
end
redis.call('DEL', KEYS[6])
return 'OK'
