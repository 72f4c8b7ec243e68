-- What scripts see: the globals, read-only, and the function that runs a script.
--
-- Gets the table of Rust functions and libraries; returns the globals and `run`.

local host = ...

local pcall, xpcall, next, type, loadstring = pcall, xpcall, next, type, loadstring
local setmetatable, unpack = setmetatable, unpack
local concat, byte, resume = table.concat, string.byte, coroutine.resume
local unwrap, unwrap_text = host.unwrap, host.unwrap_text

-- Lua 5.1 has no read-only tables: a library is an empty table in front of the true one.
local behind = host.protected
local locked = setmetatable({}, { __newindex = host.refuse, __metatable = false })

local function protect(library, missing)
    local front = {}
    behind[front] = library
    if missing then
        setmetatable(library, { __index = missing, __metatable = locked })
    end
    return setmetatable(front, { __index = library, __newindex = host.refuse, __metatable = locked })
end

local function settle(ok, value, ...)
    if ok then
        return ok, value, ...
    end
    return false, unwrap_text(value)
end

local function settle_object(ok, value, ...)
    if ok then
        return ok, value, ...
    end
    return false, unwrap(value)
end

local globals = {
    _VERSION = _VERSION,
    assert = assert,
    collectgarbage = collectgarbage,
    error = error,
    gcinfo = gcinfo,
    ipairs = ipairs,
    rawequal = rawequal,
    select = select,
    tonumber = tonumber,
    tostring = tostring,
    type = type,
    unpack = unpack,
    getmetatable = getmetatable,
    setmetatable = host.setmetatable,
    rawset = host.rawset,
    pcall = function(...)
        return settle(pcall(...))
    end,
    xpcall = function(f, handler)
        return settle_object(xpcall(f, function(value)
            return handler(unwrap(value))
        end))
    end,
    -- Bytecode could break the interpreter: text only.
    loadstring = function(text, name)
        if type(text) == "string" and byte(text) == 27 then
            return nil, "attempt to load a binary chunk"
        end
        return loadstring(text, name or text)
    end,
    load = function(reader, name)
        local pieces = {}
        repeat
            local piece = reader()
            pieces[#pieces + 1] = piece
        until piece == nil or piece == ""
        local text = concat(pieces)
        if byte(text) == 27 then
            return nil, "attempt to load a binary chunk"
        end
        return loadstring(text, name or "=(load)")
    end,
}

local rawget, pairs = rawget, pairs

globals.rawget = function(t, key)
    if type(t) ~= "table" then
        host.not_a_table("rawget", t)
    end
    return rawget(behind[t] or t, key)
end

globals.next = function(t, key)
    if type(t) ~= "table" then
        host.not_a_table("next", t)
    end
    return next(behind[t] or t, key)
end

globals.pairs = function(t)
    if type(t) ~= "table" then
        host.not_a_table("pairs", t)
    end
    return next, behind[t] or t, nil
end

local coroutines = {}
for name, f in pairs(coroutine) do
    coroutines[name] = f
end
coroutines.resume = function(...)
    return settle_object(resume(...))
end

math.random, math.randomseed = host.random, host.randomseed

-- `("x"):rep(2)` looks functions up through this; scripts must not reach the table itself.
getmetatable("").__metatable = locked

globals.coroutine = protect(coroutines)
globals.math = protect(math)
globals.string = protect(string)
globals.table = protect(table)
globals.os = protect({ clock = os.clock })
globals.redis = protect(host.redis)
globals.cjson = protect(host.cjson)
globals.cmsgpack = protect(host.cmsgpack)
globals.struct = protect(host.struct)
globals.bit = protect(host.bit)

local visible = protect(globals, host.missing)
globals._G = visible

local handler = host.handler

-- A short array without other fields is handed over item by item, which is cheaper.
local function finish(ok, value)
    if ok then
        if type(value) == "table" then
            local length = #value
            if length > 0 and length <= 64 and next(value, length) == nil then
                return true, length, unpack(value, 1, length)
            end
        end
        return true, nil, value
    end
    return false, value
end

local function run(f, keys, argv)
    globals.KEYS, globals.ARGV = keys, argv
    return finish(xpcall(f, handler))
end

return visible, run
