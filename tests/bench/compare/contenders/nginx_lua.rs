//! nginx with token buckets in Valkey, decided in the access phase by one script call over kept connections: what the
//! gateways built on nginx and Lua do at their core, without anything around it.

use std::net::SocketAddr;

use super::nginx;
use crate::jobs::Limits;
use crate::process::Process;
use crate::support::valkey::Valkey;
use crate::tools::LuaNginx;

pub(crate) fn start(
    tools: &LuaNginx,
    upstream: SocketAddr,
    limits: Limits,
    valkey: &Valkey,
) -> (SocketAddr, Process) {
    // For each bucket its size, and what it earns in a ms.
    let buckets = if limits.deny() {
        "1, 0.000001".to_owned()
    } else {
        let sizes = ["1e6, 1e3", "6e7, 1e3", "3.6e9, 1e3"];
        sizes[..limits.count()].join(", ")
    };
    let names: Vec<_> = (0..limits.count()).map(|n| format!("\":{n}\"")).collect();
    let module = LIMIT
        .replace("@PORT@", &valkey.port.to_string())
        .replace("@BUCKETS@", &buckets)
        .replace("@NAMES@", &names.join(", "))
        .replace("@SCRIPT@", SCRIPT);
    let [ndk, lua] = &tools.modules;
    let head = format!(
        "load_module {};\nload_module {};",
        ndk.display(),
        lua.display()
    );
    let http = format!(
        "{}lua_package_path \"$prefix/?.lua;{}/?.lua;;\";\ninit_by_lua_block {{ require \"limit\" }}\n",
        nginx::to(upstream),
        tools.lua.display()
    );
    let server = nginx::forwarding("access_by_lua_block { require(\"limit\").check() }");
    let setup = nginx::Setup {
        head: &head,
        http: &http,
        server: &server,
        module: Some(&module),
    };
    nginx::start(&tools.nginx, setup)
}

/// The module: a caller's buckets are looked at in one call, and answered for with 429 or two fields.
const LIMIT: &str = r#"
local redis = require "nginx.redis"
local ngx = ngx
local buckets = { @BUCKETS@ }
local names = { @NAMES@ }
local script = [[@SCRIPT@]]
local sha
local _M = {}

local function call(valkey, client)
  local arguments = { sha, #names }
  for i, name in ipairs(names) do
    arguments[2 + i] = "limit:{" .. client .. "}" .. name
  end
  for i, number in ipairs(buckets) do
    arguments[2 + #names + i] = number
  end
  return valkey:evalsha(unpack(arguments))
end

local function decide(client)
  local valkey = redis:new()
  valkey:set_timeout(1000)
  local ok, err = valkey:connect("127.0.0.1", @PORT@)
  if not ok then
    return nil, err
  end
  if not sha then
    sha, err = valkey:script("load", script)
    if not sha then
      return nil, err
    end
  end
  local answer
  answer, err = call(valkey, client)
  if not answer and err and err:sub(1, 8) == "NOSCRIPT" then
    sha, err = valkey:script("load", script)
    if not sha then
      return nil, err
    end
    answer, err = call(valkey, client)
  end
  if not answer then
    return nil, err
  end
  valkey:set_keepalive(60000, 1024)
  return answer
end

function _M.check()
  local answer, err = decide(ngx.var.http_x_client)
  if not answer then
    ngx.log(ngx.ERR, err)
    return ngx.exit(503)
  end
  ngx.header["RateLimit-Limit"] = buckets[1]
  ngx.header["RateLimit-Remaining"] = answer[2]
  if answer[1] == 0 then
    ngx.header["Retry-After"] = answer[3]
    return ngx.exit(429)
  end
end

return _M
"#;

/// Token buckets, all or none. Replies with whether it is allowed, the least that is left, and the wait in seconds.
const SCRIPT: &str = r#"
local clock = redis.call("TIME")
local now = clock[1] * 1000 + clock[2] / 1000
local held, least, wait = {}, math.huge, 0
for i, key in ipairs(KEYS) do
  local size, pace = tonumber(ARGV[2 * i - 1]), tonumber(ARGV[2 * i])
  local kept = redis.call("HMGET", key, "held", "at")
  held[i] = size
  if kept[1] then
    held[i] = math.min(size, kept[1] + math.max(0, now - kept[2]) * pace)
  end
  least = math.min(least, held[i])
  wait = math.max(wait, (1 - held[i]) / pace)
end
if least < 1 then
  return { 0, 0, math.ceil(wait / 1000) }
end
for i, key in ipairs(KEYS) do
  redis.call("HSET", key, "held", held[i] - 1, "at", now)
  redis.call("PEXPIRE", key, math.ceil(ARGV[2 * i - 1] / ARGV[2 * i]))
end
return { 1, math.floor(least - 1), 0 }
"#;
