// One check over HTTP and one over gRPC, each allowed, and then one each that is denied.
// Arguments: the URL of the service, and its gRPC address as host:port.
import { createClient as createRpcClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import createClient from "openapi-fetch";

import { RateLimiter } from "./generated/crestgate/v1/rate_limiter_pb.js";
import type { paths } from "./generated/openapi.js";

const [url, rpcAddress] = process.argv.slice(2);
if (url === undefined || rpcAddress === undefined) {
  throw new Error("usage: node build/main.js http://127.0.0.1:8080 127.0.0.1:8081");
}
// Where checks need a key: headers: { Authorization: `Bearer ${key}` }
const http = createClient<paths>({ baseUrl: url });
const rpc = createRpcClient(RateLimiter, createGrpcTransport({ baseUrl: `http://${rpcAddress}` }));

async function checkOverHttp(key: string, cost: number): Promise<boolean> {
  const { data, error } = await http.POST("/api/v1/check", { body: { key, cost } });
  if (data === undefined) {
    throw new Error(error?.detail ?? "no response");
  }
  return data.allowed;
}

async function checkOverGrpc(key: string, cost: number): Promise<boolean> {
  const response = await rpc.checkRateLimit({ key, cost: BigInt(cost) });
  return response.allowed;
}

// A key without a policy has up to 100 units: what costs more is never allowed.
for (const [protocol, check] of [["http", checkOverHttp], ["grpc", checkOverGrpc]] as const) {
  for (const cost of [1, 101]) {
    console.log(`${protocol} allowed=${await check("typescript", cost)}`);
  }
}
