// A provisioner of "local" volumes for the local cluster, each bound to the node that the scheduler chose. It makes volumes, grows them and
// deletes them by their reclaim policy. A volume is a directory of this machine, whose capacity is a number and no limit; or, where the
// StorageClass has the parameter `sized: "true"`, a loop device of that size, which the kubelet formats, mounts, and grows while mounted.
//
// The state is the cluster's: what to do is derived from each claim and volume alone, and a step that was done before is done.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/workqueue"
)

const (
	provisionerName        = "hello-operator.local/directory"
	annotationProvisioner  = "volume.kubernetes.io/storage-provisioner"
	annotationSelectedNode = "volume.kubernetes.io/selected-node"
	annotationProvisioned  = "pv.kubernetes.io/provisioned-by"
	annotationPath         = "hello-operator.local/path" // the directory, or the image of the loop device
	labelHostname          = "kubernetes.io/hostname"
	parameterSized         = "sized"
	smallestSized          = "320Mi" // mkfs.xfs refuses less than 300
)

// What the queue holds: a claim has a namespace, a volume has none.
type key = cache.ObjectName

type provisioner struct {
	directory string
	client    kubernetes.Interface
	claims    corelisters.PersistentVolumeClaimLister
	volumes   corelisters.PersistentVolumeLister
	classes   storagelisters.StorageClassLister
	queue     workqueue.TypedRateLimitingInterface[key]
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig of the cluster")
	directory := flag.String("directory", "", "where the volumes' directories are made")
	flag.Parse()
	if *kubeconfig == "" || *directory == "" {
		log.Fatal("provisioner: --kubeconfig and --directory are needed")
	}
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		log.Fatalf("provisioner: %v", err)
	}
	// Many volumes at once are the normal case of a test, and each takes a few requests.
	config.QPS, config.Burst = 200, 400
	config.UserAgent = "hello-operator-local-provisioner"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		log.Fatalf("provisioner: %v", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()

	factory := informers.NewSharedInformerFactory(client, 5*time.Minute)
	p := &provisioner{
		directory: *directory,
		client:    client,
		claims:    factory.Core().V1().PersistentVolumeClaims().Lister(),
		volumes:   factory.Core().V1().PersistentVolumes().Lister(),
		classes:   factory.Storage().V1().StorageClasses().Lister(),
		queue:     workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[key](50*time.Millisecond, 5*time.Second)),
	}
	enqueue := cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { p.enqueue(object) },
		UpdateFunc: func(_, object any) { p.enqueue(object) },
	}
	for _, informer := range []cache.SharedIndexInformer{factory.Core().V1().PersistentVolumeClaims().Informer(), factory.Core().V1().PersistentVolumes().Informer()} {
		if _, err := informer.AddEventHandler(enqueue); err != nil {
			log.Fatalf("provisioner: %v", err)
		}
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	for range 8 {
		go p.work(ctx)
	}
	<-ctx.Done()
	p.queue.ShutDown()
}

func (p *provisioner) enqueue(object any) {
	if name, err := cache.ObjectToName(object); err == nil {
		p.queue.Add(name)
	}
}

func (p *provisioner) work(ctx context.Context) {
	for {
		item, shutdown := p.queue.Get()
		if shutdown {
			return
		}
		err := p.reconcile(ctx, item)
		switch {
		case err == nil || apierrors.IsNotFound(err):
			p.queue.Forget(item)
		default:
			if !apierrors.IsConflict(err) {
				log.Printf("%v: %v", item, err)
			}
			p.queue.AddRateLimited(item)
		}
		p.queue.Done(item)
	}
}

func (p *provisioner) reconcile(ctx context.Context, item key) error {
	if item.Namespace == "" {
		volume, err := p.volumes.Get(item.Name)
		if err != nil {
			return err
		}
		return p.reclaim(ctx, volume)
	}
	claim, err := p.claims.PersistentVolumeClaims(item.Namespace).Get(item.Name)
	if err != nil {
		return err
	}
	if claim.Annotations[annotationProvisioner] != provisionerName || claim.DeletionTimestamp != nil {
		return nil
	}
	if claim.Spec.VolumeName == "" {
		return p.provision(ctx, claim)
	}
	return p.grow(ctx, claim)
}

// provision makes the directory and the volume of a claim whose node the scheduler has chosen.
func (p *provisioner) provision(ctx context.Context, claim *core.PersistentVolumeClaim) error {
	node := claim.Annotations[annotationSelectedNode]
	if node == "" || claim.Spec.StorageClassName == nil {
		return nil
	}
	if claim.Spec.VolumeMode != nil && *claim.Spec.VolumeMode != core.PersistentVolumeFilesystem {
		return errors.New("only file system volumes are made here")
	}
	class, err := p.classes.Get(*claim.Spec.StorageClassName)
	if err != nil {
		return err
	}
	name := "pvc-" + string(claim.UID)
	path := filepath.Join(p.directory, node, name)
	size := claim.Spec.Resources.Requests[core.ResourceStorage]
	source := &core.LocalVolumeSource{Path: path}
	if class.Parameters[parameterSized] == "true" {
		if smallest := resource.MustParse(smallestSized); size.Cmp(smallest) < 0 {
			size = smallest
		}
		device, err := attachImage(path, size.Value())
		if err != nil {
			return err
		}
		// Not ext4: it grows while mounted only for who has CAP_SYS_RESOURCE, which root lacks in many sandboxes.
		fsType := "xfs"
		source = &core.LocalVolumeSource{Path: device, FSType: &fsType}
	} else if err := makeDirectory(path); err != nil {
		return err
	}
	volume := &core.PersistentVolume{
		ObjectMeta: meta.ObjectMeta{Name: name, Annotations: map[string]string{annotationProvisioned: provisionerName, annotationPath: path}},
		Spec: core.PersistentVolumeSpec{
			StorageClassName: class.Name,
			Capacity:         core.ResourceList{core.ResourceStorage: size},
			AccessModes:      claim.Spec.AccessModes,
			ClaimRef: &core.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, ResourceVersion: claim.ResourceVersion,
			},
			PersistentVolumeSource: core.PersistentVolumeSource{Local: source},
			NodeAffinity: &core.VolumeNodeAffinity{Required: &core.NodeSelector{NodeSelectorTerms: []core.NodeSelectorTerm{{
				MatchExpressions: []core.NodeSelectorRequirement{{Key: labelHostname, Operator: core.NodeSelectorOpIn, Values: []string{node}}},
			}}}},
		},
	}
	if class.ReclaimPolicy != nil {
		volume.Spec.PersistentVolumeReclaimPolicy = *class.ReclaimPolicy
	}
	_, err = p.client.CoreV1().PersistentVolumes().Create(ctx, volume, meta.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// grow raises the volume's capacity to what the claim asks for, then says so in the claim's status.
func (p *provisioner) grow(ctx context.Context, claim *core.PersistentVolumeClaim) error {
	wanted := claim.Spec.Resources.Requests[core.ResourceStorage]
	actual := claim.Status.Capacity[core.ResourceStorage]
	if claim.Status.Phase != core.ClaimBound || wanted.Cmp(actual) <= 0 {
		return nil
	}
	volume, err := p.volumes.Get(claim.Spec.VolumeName)
	if err != nil {
		return err
	}
	if volume.Annotations[annotationProvisioned] != provisionerName {
		return nil
	}
	path, err := p.path(volume)
	if err != nil {
		return err
	}
	sized := volume.Spec.Local != nil && volume.Spec.Local.Path != path
	if capacity := volume.Spec.Capacity[core.ResourceStorage]; wanted.Cmp(capacity) > 0 {
		if sized {
			if _, err := attachImage(path, wanted.Value()); err != nil {
				return err
			}
		}
		volume = volume.DeepCopy()
		volume.Spec.Capacity[core.ResourceStorage] = wanted
		if _, err := p.client.CoreV1().PersistentVolumes().Update(ctx, volume, meta.UpdateOptions{}); err != nil {
			return err
		}
	}
	claim = claim.DeepCopy()
	if sized {
		// The kubelet grows the file system, and then says so in the claim's status.
		for _, condition := range claim.Status.Conditions {
			if condition.Type == core.PersistentVolumeClaimFileSystemResizePending {
				return nil
			}
		}
		claim.Status.Conditions = []core.PersistentVolumeClaimCondition{{
			Type: core.PersistentVolumeClaimFileSystemResizePending, Status: core.ConditionTrue, LastTransitionTime: meta.Now(),
			Message: "Waiting for the node to grow the file system of the volume.",
		}}
	} else {
		claim.Status.Capacity = maps.Clone(claim.Status.Capacity)
		claim.Status.Capacity[core.ResourceStorage] = wanted
		claim.Status.Conditions = nil
	}
	_, err = p.client.CoreV1().PersistentVolumeClaims(claim.Namespace).UpdateStatus(ctx, claim, meta.UpdateOptions{})
	return err
}

// reclaim deletes a volume that was released, with its data, if its policy says so.
func (p *provisioner) reclaim(ctx context.Context, volume *core.PersistentVolume) error {
	if volume.Annotations[annotationProvisioned] != provisionerName || volume.DeletionTimestamp != nil ||
		volume.Status.Phase != core.VolumeReleased || volume.Spec.PersistentVolumeReclaimPolicy != core.PersistentVolumeReclaimDelete || volume.Spec.Local == nil {
		return nil
	}
	path, err := p.path(volume)
	if err != nil {
		return err
	}
	if volume.Spec.Local.Path != path {
		// A device that is still mounted goes when its last user does.
		if _, err := losetup("--detach", volume.Spec.Local.Path); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	return p.client.CoreV1().PersistentVolumes().Delete(ctx, volume.Name, meta.DeleteOptions{
		Preconditions: &meta.Preconditions{UID: &volume.UID, ResourceVersion: &volume.ResourceVersion},
	})
}

// path is where a volume's data is. It comes from an object that anyone with rights on volumes can edit.
func (p *provisioner) path(volume *core.PersistentVolume) (string, error) {
	path := volume.Annotations[annotationPath]
	if relative, err := filepath.Rel(p.directory, path); err != nil || !filepath.IsLocal(relative) || relative == "." {
		return "", fmt.Errorf("the volume's path %q is outside %s", path, p.directory)
	}
	return path, nil
}

func makeDirectory(path string) error {
	if err := os.MkdirAll(path, 0o777); err != nil {
		return err
	}
	// Any user of a Pod may write at the root, as on a volume that was just formatted for it; MkdirAll obeys the umask.
	return os.Chmod(path, 0o777)
}

// attachImage makes a sparse file of at least this size, or grows it, and returns its loop device.
func attachImage(path string, size int64) (string, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return "", err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil {
		return "", err
	} else if info.Size() < size {
		if err := file.Truncate(size); err != nil {
			return "", err
		}
	}
	device, err := losetup("--noheadings", "--output", "NAME", "--associated", path)
	if err != nil {
		return "", err
	}
	if device == "" {
		return losetup("--find", "--show", path)
	}
	_, err = losetup("--set-capacity", device)
	return device, err
}

func losetup(arguments ...string) (string, error) {
	output, err := exec.Command("losetup", arguments...).CombinedOutput()
	text := strings.TrimSpace(string(output))
	if err != nil {
		return "", fmt.Errorf("losetup %s: %w: %s", strings.Join(arguments, " "), err, text)
	}
	return text, nil
}
