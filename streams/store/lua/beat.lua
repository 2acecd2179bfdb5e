-- Show that a partition is decided, and how far it is. This is no state: the version stays.
--
-- KEYS[1]  meta
-- KEYS[2]  alive     hash: time (of Redis, in seconds), pulse, summary
-- KEYS[3]  stopped   hash: why nothing is decided
--
-- ARGV[1]  owner
-- ARGV[2]  pulse     packed
-- ARGV[3]  summary   packed; empty: it has not changed
--
-- Returns FENCED or OK; nothing is written unless OK.

if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then
  return 'FENCED'
end
redis.call('HSET', KEYS[2], 'time', redis.call('TIME')[1], 'pulse', ARGV[2])
if #ARGV[3] > 0 then
  redis.call('HSET', KEYS[2], 'summary', ARGV[3])
end
redis.call('DEL', KEYS[3])
return 'OK'
