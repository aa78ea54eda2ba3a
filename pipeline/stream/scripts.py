"""Steps that must happen together or not at all, as Lua on the server.

Why: not MULTI, because each step first looks whether it still is to be done, and so may be asked twice. Each writes
the copy before it removes the original: a script that stops half-way leaves both.
Why: ``#!lua`` makes a full server refuse the whole script before its first step; ``allow-oom`` stands where the step
is what makes room again.
"""

from __future__ import annotations

from typing import Final

DEAD_LETTER: Final = """#!lua flags=allow-oom
-- KEYS: turns, dead. ARGV: group, then entry id, reason, field, "1" when an event follows, event: for each letter.
local n = 0
for i = 2, #ARGV, 5 do
  local id = ARGV[i]
  if #redis.call('XPENDING', KEYS[1], ARGV[1], id, id, 1) > 0 then
    local letter = {'entry_id', id, 'reason', ARGV[i + 1], 'field', ARGV[i + 2]}
    if ARGV[i + 3] == '1' then
      letter[7], letter[8] = 'event', ARGV[i + 4]
    end
    redis.call('XADD', KEYS[2], '*', unpack(letter))
    redis.call('XACK', KEYS[1], ARGV[1], id)
    if #redis.call('XINFO', 'GROUPS', KEYS[1]) == 1 then redis.call('XDEL', KEYS[1], id) end
    n = n + 1
  end
end
return n
"""

ACK: Final = """#!lua flags=allow-oom
-- KEYS: turns. ARGV: group, entry ids. Acks them, and deletes them when no other group reads; gives how many.
local alone = redis.call('EXISTS', KEYS[1]) == 1 and #redis.call('XINFO', 'GROUPS', KEYS[1]) == 1
local n = 0
for i = 2, #ARGV, 1000 do  -- what a Lua call can take
  local some = {unpack(ARGV, i, math.min(i + 999, #ARGV))}
  n = n + redis.call('XACK', KEYS[1], ARGV[1], unpack(some))
  if alone then redis.call('XDEL', KEYS[1], unpack(some)) end
end
return n
"""

TAKE_UP: Final = """#!lua flags=allow-oom
-- KEYS: turns. ARGV: group, consumer, most to take. Makes entries pending that were delivered, and are neither acked
-- nor pending; gives them. With one group what is acked is gone; with several, nobody can tell.
redis.call('XPENDING', KEYS[1], ARGV[1])  -- says so when the group is gone
local groups, found = redis.call('XINFO', 'GROUPS', KEYS[1]), {}
if #groups > 1 then return {} end
for i = 1, #groups[1], 2 do found[groups[1][i]] = groups[1][i + 1] end
if found['lag'] and redis.call('XLEN', KEYS[1]) - found['lag'] - found['pending'] <= 0 then return {} end
local strays, most, from = {}, tonumber(ARGV[3]), '-'
while #strays < most do
  local entries = redis.call('XRANGE', KEYS[1], from, found['last-delivered-id'], 'COUNT', 16)
  if #entries == 0 then break end
  local last, pending = entries[#entries][1], {}
  for _, claim in ipairs(redis.call('XPENDING', KEYS[1], ARGV[1], entries[1][1], last, 1000)) do
    pending[claim[1]] = true
  end
  for _, entry in ipairs(entries) do
    if not pending[entry[1]] and #strays < most then strays[#strays + 1] = entry[1] end
  end
  from = '(' .. last
end
if #strays == 0 then return {} end
strays[#strays + 1] = 'FORCE'
return redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, unpack(strays))
"""

REPLAY: Final = """#!lua
-- KEYS: turns, dead. ARGV: ids of dead letters. Gives the new entry ids; a letter without an event stays.
local added = {}
for _, id in ipairs(ARGV) do
  local found = redis.call('XRANGE', KEYS[2], id, id)[1]
  for i = 1, found and #found[2] or 0, 2 do
    if found[2][i] == 'event' then
      added[#added + 1] = redis.call('XADD', KEYS[1], '*', 'event', found[2][i + 1])
      redis.call('XDEL', KEYS[2], id)
      break
    end
  end
end
return added
"""

TRIM: Final = """#!lua flags=allow-oom
-- KEYS: turns. Drops what every one of several groups has read and acked; gives how many. With one group it was
-- deleted when it was acked: what is left was not, even if it is pending no more. No group: nobody has read anything.
local function split(id) return string.match(id, '^(%d+)-(%d+)$') end
local function smaller(a, b)  -- as numbers of up to 20 digits, which a Lua number cannot hold
  if #a ~= #b then return #a < #b end
  return a < b
end
local function before(a, b)
  local a_ms, a_seq = split(a)
  local b_ms, b_seq = split(b)
  if a_ms ~= b_ms then return smaller(a_ms, b_ms) end
  return smaller(a_seq, b_seq)
end
local function after(id)
  local ms, seq = split(id)
  if #seq > 15 then return id end  -- keeps one entry too many, never one too few
  return ms .. '-' .. string.format('%.0f', tonumber(seq) + 1)
end
if redis.call('EXISTS', KEYS[1]) == 0 or #redis.call('XINFO', 'GROUPS', KEYS[1]) < 2 then return 0 end
local least = nil
for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local info = {}
  for i = 1, #group, 2 do info[group[i]] = group[i + 1] end
  local first_pending = redis.call('XPENDING', KEYS[1], info['name'])[2]
  local needed = first_pending or after(info['last-delivered-id'])
  if not least or before(needed, least) then least = needed end
end
return redis.call('XTRIM', KEYS[1], 'MINID', '=', least)
"""

REMOVE_IDLE_CONSUMERS: Final = """#!lua flags=allow-oom
-- KEYS: turns. ARGV: group, idle milliseconds. Gives the names removed; a consumer with pending entries stays.
local removed = {}
for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local info = {}
  for i = 1, #consumer, 2 do info[consumer[i]] = consumer[i + 1] end
  if info['pending'] == 0 and info['idle'] >= tonumber(ARGV[2]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], info['name'])
    removed[#removed + 1] = info['name']
  end
end
return removed
"""

COUNT_AFTER: Final = """#!lua flags=no-writes
-- KEYS: turns. ARGV: entry id, most to count. Gives how many entries follow, and the id of the last one counted.
local found = redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+', 'COUNT', ARGV[2])
return {#found, #found > 0 and found[#found][1] or ARGV[1]}
"""

ENDS: Final = """#!lua flags=no-writes
-- KEYS: turns. Gives the id of the first entry, '' without one, and the last id ever given out.
if redis.call('EXISTS', KEYS[1]) == 0 then return {'', '0-0'} end
local info, reply = {}, redis.call('XINFO', 'STREAM', KEYS[1])
for i = 1, #reply, 2 do info[reply[i]] = reply[i + 1] end
return {info['first-entry'] and info['first-entry'][1] or '', info['last-generated-id']}
"""
