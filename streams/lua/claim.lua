-- Become the owner of a partition: from now on every other owner is fenced.
--
-- KEYS[1]  meta      hash: owner, next
--
-- ARGV[1]  owner     token of the claim
--
-- Returns the next offset to apply, and the owner before ('' for none).

local meta = redis.call('HMGET', KEYS[1], 'owner', 'next')
redis.call('HSET', KEYS[1], 'owner', ARGV[1])
redis.call('HSETNX', KEYS[1], 'next', '0')
return {tonumber(meta[2] or '0'), meta[1] or ''}
