// One check over gRPC that is allowed, and then one that is denied.
// Argument: the gRPC address of the service, host:port.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	pb "example.com/crestgate-client/generated/crestgate/v1"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: crestgate-client 127.0.0.1:8081")
	}
	connection, err := grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	client := pb.NewRateLimiterClient(connection)

	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	// Where checks need a key: metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+key)

	// A key without a policy has up to 100 units: what costs more is never allowed.
	for _, cost := range []int64{1, 101} {
		response, err := client.CheckRateLimit(ctx, &pb.CheckRequest{Key: "go", Cost: proto.Int64(cost)})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("grpc allowed=%t\n", response.Allowed)
	}
}
